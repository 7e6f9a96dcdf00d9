package rules

import (
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func tryBesideWaiters(e *engine.Env) {
	clients, beside := e.Lockers(3), e.Locker()
	key := e.Key("a")
	h := clients[0].MustTry(key)
	const waiters = 8
	stop := make(chan struct{})
	var served sync.WaitGroup
	served.Add(waiters)
	fs := []func(){}
	for i := range waiters {
		fs = append(fs, func() {
			defer served.Done()
			got := clients[i%3].MustWait(e.Ctx, key)
			e.Pause(e.Randomly(3 * time.Millisecond))
			got.MustRelease()
		})
	}
	for _, c := range clients {
		fs = append(fs, func() {
			// Who tries again and again is before those who ask now and then. So all stop taking
			// the key, and those who wait have it in the end.
			for taken := 0; taken < 20; {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := c.Try(key); err == nil {
					taken++
					e.Pause(e.Randomly(2 * time.Millisecond))
					got.MustRelease()
				} else {
					e.JudgeRefusal(key, "TryAcquire", "others hold it", nil, err)
				}
				e.Pause(3*time.Millisecond + e.Randomly(5*time.Millisecond))
			}
		})
	}
	wait := e.Start(fs...)
	go func() { served.Wait(); close(stop) }()
	e.Settle()
	var late engine.Lateness
	for i := range 2 * len(clients) {
		beside.MustTry(e.Key("beside-%d", i)).MustRelease() // as long as this takes, nothing is late
		mustAnswerTry(clients[i/2], key, &late, "while the key was held and others waited for it through the same Locker; a try does not wait with them")
	}
	tryBesideOwnWait(e, clients[0], beside, &late)
	late.Judge(e, key, e.Prompt(), "TryAcquire of a key that was held, and that others waited for through the same Locker, returned")
	h.MustRelease()
	wait()
}

// tryBesideOwnWait has an owner try a key for which it waits itself.
func tryBesideOwnWait(e *engine.Env, c, holder *engine.Client, late *engine.Lateness) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	key := e.Key("owned")
	h := holder.MustTry(key)
	w := c.Acquiring(key, owner...)
	e.Settle()
	for range 3 {
		mustAnswerTry(c, key, late, "while the key was held and its owner waited for it through the same Locker; a try does not wait with it", owner...)
	}
	h.MustRelease()
	w.MustGet(e, key, e.WaitBound(), "it was released").MustRelease()
}

// mustAnswerTry tries a key that is not released before the answer is there.
func mustAnswerTry(c *engine.Client, key string, late *engine.Lateness, when string, more ...lock.Option) {
	e := c.Env
	answered := make(chan struct{})
	begun := time.Now()
	wait := e.Start(func() {
		defer close(answered)
		if got, err := c.Try(key, more...); err == nil {
			got.MustRelease()
		}
	})
	if d := e.WaitBound(); !e.Within(d, answered) {
		e.OverdueFatalf(key, "TryAcquire had not returned after %s, %s", d, when)
	}
	late.Add(e, time.Since(begun))
	wait()
}
