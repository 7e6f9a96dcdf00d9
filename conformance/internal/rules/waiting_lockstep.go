package rules

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// noLockstep has clients wait behind a server of its own, which refuses all of them at
// the same moment, and looks at when they ask again. Whoever adds nothing at random to
// its pauses asks together with the others from then on.
func noLockstep(e *engine.Env) {
	const clients = 8
	window := 6 * time.Second // five pauses of each where a lease of a second is waited for; two may agree by chance
	inner := e.Backend()
	cases := []*crowd{
		{name: "held", why: "somebody held the key", answer: heldFor(0)},
		{name: "unreachable", why: "the server could not be reached", answer: func(string, time.Duration) error {
			return backend.ErrUnavailable
		}},
		{name: "renewed", why: "somebody held the key and renewed a lease of a second", answer: heldFor(time.Second)},
		{name: "watched", why: "somebody held the key and renewed a lease of a second, and the waiters listened for its release", answer: heldFor(time.Second), watch: true},
	}
	e.Each(len(cases), func(i int) {
		c := cases[i]
		c.e, c.key, c.n = e, e.Key("%s", c.name), clients
		c.refused, c.asked = make(chan struct{}), make([][]time.Duration, clients)
		if c.watch && !engine.Implements[backend.Watcher](inner.Backend) {
			return
		}
		ctx, cancel := context.WithCancel(e.Ctx)
		defer cancel()
		waiters := make([]*engine.Client, clients)
		for n := range waiters {
			waiters[n] = e.LockerFrom(func(context.Context) (lock.Locker, error) { return e.MakeLocker(c.refusing(inner, n), e.TTL) })
		}
		wait := e.Start(func() {
			e.Each(clients, func(n int) {
				if h, err := waiters[n].Acquire(ctx, c.key); err == nil {
					_ = h.Release(e.Ctx)
					e.Failf(c.key, "Acquire was granted a key, though %s", c.why)
				}
			})
		})
		c.judge(window)
		cancel()
		wait()
	})
}

// crowd is a number of clients that wait for one key.
type crowd struct {
	e         *engine.Env
	name, why string
	key       string
	n         int
	watch     bool
	answer    func(key string, now time.Duration) error

	refused chan struct{} // closed when each has asked once
	mu      sync.Mutex
	asked   [][]time.Duration // by client, since the case began; the first is that of the first answer
}

// heldFor is the answer about a key whose holder renews a lease of that TTL every
// third of it, and of which no more is known for the TTL zero.
func heldFor(ttl time.Duration) func(string, time.Duration) error {
	since := time.Now()
	return func(key string, now time.Duration) error {
		err := &backend.HeldError{Key: key, Holder: backend.Holder{Since: since}}
		if ttl > 0 {
			err.Remaining = ttl - now%(ttl/3)
		}
		return err
	}
}

// refusing is a client of a server that grants nothing.
type refusing struct {
	backend.Backend
	clock backend.Clock
	c     *crowd
	n     int
}

func (c *crowd) refusing(inner *engine.BackendClient, n int) backend.Backend {
	r := refusing{inner.Backend, inner.Clock, c, n}
	if c.watch {
		return silent{r}
	}
	return r
}

func (r refusing) Clock() backend.Clock { return r.clock }

func (r refusing) Close() error { return nil } // the case closes what they share

func (r refusing) Release(context.Context, backend.Hold) error { return backend.ErrNotHeld }

func (r refusing) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	c := r.c
	c.mu.Lock()
	first := len(c.asked[r.n]) == 0
	c.asked[r.n] = append(c.asked[r.n], c.e.Log.Now())
	if first && !slices.ContainsFunc(c.asked, func(a []time.Duration) bool { return len(a) == 0 }) {
		close(c.refused)
	}
	c.mu.Unlock()
	if first {
		select {
		case <-c.refused:
		case <-ctx.Done():
			return backend.Grant{}, ctx.Err()
		}
		c.mu.Lock()
		c.asked[r.n][0] = c.e.Log.Now()
		c.mu.Unlock()
	}
	return backend.Grant{}, c.answer(req.Key, c.e.Log.Now())
}

// silent is refusing with watches that never signal.
type silent struct{ refusing }

func (s silent) Watch(ctx context.Context, _ string) (<-chan backend.Hint, error) {
	hints := make(chan backend.Hint)
	context.AfterFunc(ctx, func() { close(hints) })
	return hints, nil
}

const (
	stepLeast = 40 * time.Millisecond // shorter pauses are as long as the scheduler makes them
	stepWidth = 64                    // two requests within this part of a pause come together
	stepCount = 16                    // requests of each client; clocks that drift part clients, too
	stepMost  = 0.75                  // of the others, may come together with one as a rule
)

// judge looks at the requests of the window: how many others asked at the moment when
// one did, as a rule, that is in the median.
func (c *crowd) judge(window time.Duration) {
	e := c.e
	if !e.Within(e.Slack(), c.refused) {
		e.OverdueFatalf(c.key, "%d clients called Acquire, and after %s not all of them had asked the server", c.n, e.Slack())
	}
	e.Pause(window)
	c.mu.Lock()
	asked := make([][]time.Duration, c.n)
	for n := range asked {
		asked[n] = slices.Clone(c.asked[n])
	}
	c.mu.Unlock()
	var together []float64
	var example string
	for n, mine := range asked {
		for i := 1; i < min(len(mine), stepCount); i++ {
			pause := mine[i] - mine[i-1]
			if pause < stepLeast {
				continue
			}
			near := 0
			for other, theirs := range asked {
				if other != n && inStep(theirs, i, mine[i], pause) {
					near++
				}
			}
			together = append(together, float64(near)/float64(c.n-1))
		}
	}
	if len(together) < 3*c.n {
		e.Notef("%s: inconclusive, %d requests after pauses", c.name, len(together))
		return
	}
	slices.Sort(together)
	median := together[len(together)/2]
	for n := range min(3, c.n) {
		example += "\n  client " + string(rune('1'+n)) + " asked at"
		for _, t := range asked[n][max(len(asked[n])-6, 0):] {
			example += " " + engine.Seconds(t)
		}
	}
	if median > stepMost {
		e.Latef(c.key, "%d clients were refused at the same moment, since %s, and went on asking in step: as a rule %.0f %% of the others asked together with one, or after as long a pause; expected pauses that differ at random, by a tenth or more.%s",
			c.n, c.why, 100*median, example)
	}
	e.Notef("%s: %d requests after pauses, as a rule with %.0f %% of the others", c.name, len(together), 100*median)
}

// inStep reports whether a client asked at the time at which another asked after a
// pause, or paused for as long before the request of the same number: a busy machine
// parts clients that pause alike.
func inStep(theirs []time.Duration, i int, at, pause time.Duration) bool {
	width := pause / stepWidth
	if i < len(theirs) && (theirs[i]-theirs[i-1]-pause).Abs() <= width {
		return true
	}
	return slices.ContainsFunc(theirs[1:], func(t time.Duration) bool { return (t - at).Abs() <= width })
}
