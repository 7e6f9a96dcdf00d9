package rules

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

const (
	// momentWaits is how many waits each way makes, and momentsAtOnce how many go on side
	// by side.
	momentWaits   = 48
	momentsAtOnce = 8
	// So many are made where who waits or what ends the hold is another. What runs out takes
	// a TTL, so that those go on all at once.
	otherWaits  = 16
	runOutWaits = 8
	// lateMoments are late by the fault of the lock; fewer may be for any reason.
	lateMoments = 4
)

// moments are how long waits took that the end of a hold met at random moments.
type moments struct {
	e    *engine.Env
	span time.Duration // of the moments
	pair time.Duration // that a try and a release take
	n    atomic.Int64  // of the waits
}

// wait is one of many.
type wait struct {
	key  string
	took time.Duration
}

// newMoments measures a request first. What goes on between asking and watching takes a
// few of them.
func newMoments(e *engine.Env) *moments {
	c, key := e.Locker(), e.Key("request")
	pair := time.Hour
	for range 3 {
		begun := time.Now()
		c.MustTry(key).MustRelease()
		pair = min(pair, time.Since(begun))
	}
	return &moments{e: e, span: min(4*time.Millisecond+2*pair, e.WakeBound()/2), pair: pair}
}

// moment is a short time at random: those below a hundredth of the span are as likely as
// those above a tenth of it.
func (m *moments) moment() time.Duration {
	const fine = 1 << 20
	return time.Duration(float64(m.span) * math.Pow(0.001, float64(m.e.Random(fine))/fine))
}

// A wake-up takes a release, its signal and a try. Where a waiter gives up, its place is taken
// away besides: that may take a connection, an order on it and what the server does then.
const (
	wakeRequests   = 3
	gaveUpRequests = 6
)

// each makes many waits of one way, several at a time, until too many have been late. The
// last wake-up takes so many requests.
func (m *moments) each(way string, requests int, f func(key string) time.Duration) {
	m.some(way, momentWaits, momentsAtOnce, requests, f)
}

// some is each, with so many waits, and so many of them at a time.
func (m *moments) some(way string, waits, atOnce, requests int, f func(key string) time.Duration) {
	if m.e.Failed() {
		return
	}
	most := m.e.WakeBound()
	var mu sync.Mutex
	var late []wait
	m.e.Each(atOnce, func(i int) {
		for n := range waits / atOnce {
			mu.Lock()
			enough := len(late) >= lateMoments
			mu.Unlock()
			if enough {
				return
			}
			m.n.Add(1)
			key := m.e.Key("%s-%d-%d", way, i, n)
			if took := f(key); took > most {
				mu.Lock()
				late = append(late, wait{key, took})
				mu.Unlock()
			}
		}
	})
	if len(late) < lateMoments {
		return
	}
	least := slices.MinFunc(late, func(a, b wait) int { return int(a.took - b.took) })
	m.e.Fail(m.e.LateWake(least.took, most, requests), least.key, "%s: %d of at most %d waiters were granted the key %s or more after it had to be free for them; expected at most %s, whatever the moment of that",
		way, len(late), waits, engine.Short(least.took), engine.Short(most))
}

// waitsBefore begins to wait a moment before the hold of the key is to end.
func (m *moments) waitsBefore(end time.Duration, key string, c *engine.Client) *engine.Acquiring {
	m.e.Pause(end - m.moment() - m.e.Log.Now())
	w := c.Acquiring(key)
	<-w.Begun
	return w
}

// await waits for the grant. It is the last thing that may be late, so that it is given
// more time than any fallback takes that is of use.
func (m *moments) await(w *engine.Acquiring, key string) time.Duration {
	released := time.Now()
	got := w.MustGet(m.e, key, 2*m.e.WaitBound(), "the key became free while it was beginning to wait, or was being woken")
	took := time.Since(released)
	got.MustRelease()
	return took
}

func wakesAtAnyMoment(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	m := newMoments(e)
	wait := e.Start(func() { runsOutAtAnyMoment(e, m) })
	for name, c := range map[string]*engine.Client{"same Locker": a, "another Locker": b} {
		m.each("released as a wait through "+name+" begins", wakeRequests, func(key string) time.Duration {
			h := a.MustTry(key)
			w := c.Acquiring(key)
			<-w.Begun
			e.Pause(m.moment())
			h.MustRelease()
			return m.await(w, key)
		})
		m.each("taken again as a waiter through "+name+" is woken", wakeRequests, func(key string) time.Duration {
			h := a.MustTry(key)
			w := c.Acquiring(key)
			<-w.Begun
			e.Pause(2 * m.span)
			for range 3 {
				h.MustRelease()
				again, err := a.Try(key)
				if err != nil { // the waiter has it
					e.JudgeRefusal(key, "TryAcquire", "a waiter was granted it", nil, err)
					break
				}
				h = again
				e.Pause(m.moment())
			}
			if !h.IsReleased() {
				h.MustRelease()
			}
			return m.await(w, key)
		})
	}
	kindsAtAnyMoment(e, m, a, b)
	endsAtAnyMoment(e, m, a, b)
	wait()
	e.Notef("%d waits, with ends of holds within %s of their beginning", m.n.Load(), engine.Short(m.span))
}

// kindsAtAnyMoment has leases of each kind waited for, and released with others waiting.
func kindsAtAnyMoment(e *engine.Env, m *moments, a, b *engine.Client) {
	for name, c := range map[string]*engine.Client{"same Locker": a, "another Locker": b} {
		for _, k := range optionKinds(e, a) {
			if policyTried(e) && !k.unrenewed && k.name != "an owner" {
				continue
			}
			for way, opts := range map[string][2][]lock.Option{
				"released as a wait through " + name + " with " + k.name + " begins":  {nil, k.opts},
				"with " + k.name + ", released as a wait through " + name + " begins": {k.opts, nil},
			} {
				m.some(way, otherWaits, momentsAtOnce, wakeRequests, func(key string) time.Duration {
					h := a.MustTry(key, opts[0]...)
					w := c.Acquiring(key, opts[1]...)
					<-w.Begun
					e.Pause(m.moment())
					h.MustRelease()
					return m.await(w, key)
				})
			}
		}
	}
}

// endsAtAnyMoment has holds end by other calls than their release, or by none.
func endsAtAnyMoment(e *engine.Env, m *moments, a, b *engine.Client) {
	if took, frees := closing(e, b); !frees {
		e.Notef("not tried: waits for what Close gives back, as it gave back nothing to one that waited")
	} else if took > e.Prompt()/2 {
		e.Notef("not tried: waits for what Close gives back, as Close takes %s", engine.Short(took))
	} else {
		m.some("freed by Close as a wait begins", otherWaits, momentsAtOnce, wakeRequests, func(key string) time.Duration {
			return m.closed(key, b, nil)
		})
		if owner := oneOwner(e); owner != nil && !policyTried(e) {
			m.some("an owner's hold, freed by Close as a wait begins", otherWaits, momentsAtOnce, wakeRequests, func(key string) time.Duration {
				return m.closed(key, b, owner)
			})
		}
	}
	if owner := oneOwner(e); owner != nil && !policyTried(e) {
		another := []lock.Option{lock.WithOwner(e.Owner("B"))}
		m.some("released as a wait of an owner, behind another, begins", otherWaits, momentsAtOnce, wakeRequests, func(key string) time.Duration {
			h := a.MustTry(key, owner...)
			w := b.Acquiring(key, another...)
			<-w.Begun
			e.Pause(m.moment())
			h.MustRelease()
			return m.await(w, key)
		})
	}
	if h, err := a.Try(e.Key("limited"), lock.WithMaxHold(e.Long)); err == nil {
		h.MustRelease()
		m.some("ended by its maximum hold as a wait begins", otherWaits, momentsAtOnce, wakeRequests, func(key string) time.Duration {
			limit := 2 * m.span
			h := a.MustTry(key, lock.WithMaxHold(limit))
			w := m.waitsBefore(h.Granted+limit, key, b)
			e.Within(limit+e.Slack(), h.Lease.Context().Done()) // another rule judges that
			return m.await(w, key) - m.pair                     // the server is told after that, and a question may be on its way
		})
	}
}

// closed closes the Locker of the holder.
func (m *moments) closed(key string, b *engine.Client, opts []lock.Option) time.Duration {
	closes := m.e.Locker()
	closes.MustTry(key, opts...)
	w := b.Acquiring(key)
	<-w.Begun
	m.e.Pause(m.moment())
	if err := closes.Close(); err != nil {
		m.e.UnexpectedFatal(key, err, "Close returned %s; expected no error", engine.Outcome(err))
	}
	return m.await(w, key)
}

// closing is how long Close takes of a Locker with a hold for which somebody waits, and whether
// it gives that back; CloseEndsHolds judges it.
func closing(e *engine.Env, b *engine.Client) (took time.Duration, frees bool) {
	c, key := e.Locker(), e.Key("closed")
	c.MustTry(key)
	w := b.Acquiring(key)
	<-w.Begun
	e.Settle()
	begun := time.Now()
	_ = c.Close()
	took = time.Since(begun)
	if frees = e.Within(e.WakeBound(), w.Done); !frees { // later it is the end of the lease that does
		w.Cancel()
	}
	if w.Wait(); w.Err == nil {
		w.Hold.MustRelease()
	}
	return took, frees
}

// runsOutAtAnyMoment has all holds run out at about the same time, since each takes a TTL:
// those of a Locker, which may give them back, and those that nobody gives back.
func runsOutAtAnyMoment(e *engine.Env, m *moments) {
	if e.Claimed.TakeoverLag > e.Slack() {
		e.Notef("not tried: waits for what runs out, as a takeover lag of %s leaves no moment for it", engine.Short(e.Claimed.TakeoverLag))
		return
	}
	waits := e.Locker()
	layers := e.Layers() // none, perhaps
	e.Each(len(layers), func(i int) {
		a := layers[i].Open()
		m.some("run out as a wait begins, "+layers[i].Name, runOutWaits, runOutWaits, wakeRequests, func(key string) time.Duration {
			e.Pause(e.Randomly(e.TTL / 4))
			g := e.MustTake(a, key, e.TTL)
			over := e.Log.Now() + e.TTL
			g.Lapses()
			end := over
			if h, ok := g.(*engine.Hold); ok {
				end = e.Log.At(h.Until())
			}
			m.await(m.waitsBefore(end, key, waits), key)
			return e.Log.Now() - over - e.Claimed.TakeoverLag - e.WaitBound() // who is not told asks now and then
		})
	})
}

func gaveUpWakesNext(e *engine.Env) {
	a, b, c := e.Locker(), e.Locker(), e.Locker()
	m := newMoments(e)
	for name, first := range map[string]*engine.Client{"same Locker": b, "another Locker": c} {
		m.each("a waiter through "+name+" gives up as the key becomes free", gaveUpRequests, func(key string) time.Duration {
			h := a.MustTry(key)
			goes := first.Acquiring(key)
			<-goes.Begun
			e.Pause(2 * m.span)
			stays := b.Acquiring(key)
			<-stays.Begun
			e.Pause(2 * m.span)
			cancel, release := m.moment(), m.moment()
			e.Together(
				func() { e.Pause(cancel); goes.Cancel() },
				func() { e.Pause(release); h.MustRelease() },
				func() { // it may have been granted the key before it gave up
					if goes.Wait(); goes.Err == nil {
						goes.Hold.MustRelease()
					}
				})
			return m.await(stays, key)
		})
	}
	e.Notef("%d waiters gave up", 2*momentWaits)
}
