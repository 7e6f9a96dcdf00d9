package rules

import (
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

func manyWaiters(e *engine.Env) {
	clients := e.Lockers(4)
	key := e.Key("a")
	h := clients[0].MustTry(key)
	const crowd = 40
	var work engine.Updates
	wait := e.Start(func() {
		e.Each(crowd, func(i int) {
			got := clients[i%len(clients)].MustWait(e.Ctx, key)
			work.Work(got)
			got.MustRelease()
		})
	})
	e.Settle()
	h.MustRelease()
	wait()
	work.Check(e, key)
	manyOfOne(e)
	manyKeysOfOne(e)
}

// manyKeysOfOne has one Locker wait for many keys at a time, of which the one is released that
// was asked for last.
func manyKeysOfOne(e *engine.Env) {
	many := manyAtOnce(e)
	a, b := e.Locker(), e.Locker()
	holds, waits := make([]*engine.Hold, many), make([]*engine.Acquiring, many)
	for i := range holds {
		key := e.Key("of many-%d", i)
		holds[i] = b.MustTry(key)
		waits[i] = a.Acquiring(key)
		<-waits[i].Begun
	}
	e.Settle()
	last := many - 1
	holds[last].MustRelease()
	waits[last].MustGet(e, holds[last].Key, e.WaitBound(), fmt.Sprintf("it was released, while others wait for %d other keys through the same Locker, which are held", last)).MustRelease()
	e.Each(last, func(i int) {
		holds[i].MustRelease()
		waits[i].MustGet(e, holds[i].Key, time.Duration(1+many/5)*e.WaitBound(), fmt.Sprintf("it was released, as %d keys were for which the same Locker waits", many)).MustRelease()
	})
}

// manyOfOne has the crowd wait through one Locker, which asks for all of them.
func manyOfOne(e *engine.Env) {
	crowd := 40
	if e.Claimed.Reach == backend.ReachProcess {
		crowd = e.Rounds(e.Work(10*time.Millisecond), crowd, 300)
	}
	a, b := e.Locker(), e.Locker()
	key := e.Key("one")
	h := b.MustTry(key)
	waits := make([]*engine.Acquiring, crowd)
	for i := range waits {
		waits[i] = a.Acquiring(key)
	}
	e.Settle()
	h.MustRelease()
	e.Each(crowd, func(i int) {
		waits[i].MustGet(e, key, time.Duration(1+crowd/5)*e.WaitBound(), fmt.Sprintf("all who waited through its Locker released it at once, %d in all", crowd)).MustRelease()
	})
	b.Soon(key, "the last of the crowd has released it").MustRelease()
}
