package rules

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock/conformance/internal/engine"
)

const (
	// momentWaits is how many waits each way makes, and momentsAtOnce how many go on side
	// by side.
	momentWaits   = 48
	momentsAtOnce = 8
)

// moments are how long waits took that a release met at random moments.
type moments struct {
	e    *engine.Env
	span time.Duration // of the moments
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
	span := time.Hour
	for range 3 {
		begun := time.Now()
		c.MustTry(key).MustRelease()
		span = min(span, time.Since(begun))
	}
	return &moments{e: e, span: min(4*time.Millisecond+2*span, e.WakeBound()/2)}
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
	if m.e.Failed() {
		return
	}
	const many = momentWaits / 12 // fewer may be late for any reason
	most := m.e.WakeBound()
	var mu sync.Mutex
	var late []wait
	m.e.Each(momentsAtOnce, func(i int) {
		for n := range momentWaits / momentsAtOnce {
			mu.Lock()
			enough := len(late) >= many
			mu.Unlock()
			if enough {
				return
			}
			key := m.e.Key("%s-%d-%d", way, i, n)
			if took := f(key); took > most {
				mu.Lock()
				late = append(late, wait{key, took})
				mu.Unlock()
			}
		}
	})
	if len(late) < many {
		return
	}
	least := slices.MinFunc(late, func(a, b wait) int { return int(a.took - b.took) })
	m.e.Fail(m.e.LateWake(least.took, most, requests), least.key, "%s: %d of at most %d waiters were granted the key %s or more after its last release; expected at most %s, whatever the moment of the release",
		way, len(late), momentWaits, engine.Short(least.took), engine.Short(most))
}

// await waits for the grant. It is the last thing that may be late, so that it is given
// more time than any fallback takes that is of use.
func (m *moments) await(w *engine.Acquiring, key string) time.Duration {
	released := time.Now()
	got := w.MustGet(m.e, key, 2*m.e.WaitBound(), "the key was released while it was beginning to wait, or was being woken")
	took := time.Since(released)
	got.MustRelease()
	return took
}

func wakesAtAnyMoment(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	m := newMoments(e)
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
	e.Notef("%d waits, with releases within %s of their beginning", 4*momentWaits, engine.Short(m.span))
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
