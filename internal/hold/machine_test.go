package hold

import (
	"errors"
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mortiselock/lock/backend"
)

// holdModel is what a hold must be, written down independently: a deadline that
// confirmed renewals move, and an end that happens once.
type holdModel struct {
	ttl      time.Duration
	deadline backend.Instant
	limit    backend.Instant
	over     bool
	released bool
	cause    error
}

// runs has rapid make so many runs, unless the flag -rapid.checks asks for another number.
func runs(t *testing.T, n int) {
	t.Helper()
	f := flag.Lookup("rapid.checks")
	if before := f.Value.String(); before == f.DefValue {
		require.NoError(t, f.Value.Set(strconv.Itoa(n)))
		t.Cleanup(func() { require.NoError(t, f.Value.Set(before)) })
	}
}

// TestHoldKeepsItsPromisesInAnyOrderOfEvents drives the state machine with random
// events at random times, whole TTLs apart at times, and compares it with the
// model after every step.
func TestHoldKeepsItsPromisesInAnyOrderOfEvents(t *testing.T) {
	runs(t, 8_000) // of some fifty steps each
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(int64(10*time.Millisecond), int64(time.Hour)).Draw(t, "ttl"))
		now := backend.Instant(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "start"))
		maxHold := time.Duration(rapid.SampledFrom([]int64{0, 0, int64(ttl), 10 * int64(ttl)}).Draw(t, "maxHold"))
		renew := rapid.Bool().Draw(t, "renew")
		roll := func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "roll") }
		h := newMachine(ttl, backend.Validity{Sent: now, For: backend.ValidFor(ttl)}, now, renew, maxHold, roll())
		m := holdModel{ttl: ttl, deadline: now.Add(backend.ValidFor(ttl)), limit: never}
		if maxHold > 0 {
			m.limit = now.Add(maxHold)
		}
		ended := 0
		// at is when a request that is answered now may have been sent: not before
		// the hold began.
		began, sent := now, now.Add(-ttl)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			step := rapid.Int64Range(0, int64(ttl)/2).Draw(t, "pass")
			if rapid.IntRange(0, 30).Draw(t, "pause") == 0 {
				step = 3 * int64(ttl)
			}
			now = now.Add(time.Duration(step))
			before := h
			var act action
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0, 1, 2:
				act = h.tick(now, roll())
				if !m.over {
					switch {
					case now >= m.limit && m.limit <= m.deadline:
						m.over, m.cause = true, backend.ErrMaxHold
					case now >= m.deadline:
						m.over, m.cause = true, backend.ErrExpired
					}
				}
			case 3:
				asked := now.Add(-time.Duration(rapid.Int64Range(0, int64(now.Sub(began))).Draw(t, "age")))
				v := backend.Validity{Sent: asked, For: backend.ValidFor(ttl)}
				act = h.renewed(now, v, roll())
				if !m.over {
					if now >= m.deadline {
						m.over, m.cause = true, backend.ErrExpired
					} else {
						m.deadline = max(m.deadline, v.Until())
					}
				}
			case 4:
				act = h.failed(now, roll())
				if !m.over && now >= m.deadline {
					m.over, m.cause = true, backend.ErrExpired
				}
			case 5:
				act = h.renewed(now, backend.Validity{Sent: now}, roll())
				if !m.over && now >= m.deadline {
					m.over, m.cause = true, backend.ErrExpired
				}
			case 6:
				act = h.gone(now, backend.ErrTakenOver)
				if !m.over {
					m.over, m.cause = true, backend.ErrTakenOver
					if now >= m.deadline {
						m.cause = backend.ErrExpired
					}
				}
			case 7:
				act = h.release(now)
				if !m.over {
					m.over, m.released, m.cause = true, true, ErrReleased
					if now >= m.deadline {
						m.released, m.cause = false, backend.ErrExpired
					}
				}
				if rapid.Bool().Draw(t, "settle") {
					h.settle()
				}
			}
			if act&actEnd != 0 {
				ended++
			}
			switch {
			case m.over != (h.phase != phaseHeld):
				t.Fatalf("over: model %v, hold in phase %d (before: %+v)", m.over, h.phase, before)
			case m.over && !errors.Is(h.cause, m.cause):
				t.Fatalf("cause: model %v, hold %v", m.cause, h.cause)
			case m.over && ended != 1:
				t.Fatalf("the end was signalled %d times", ended)
			case !m.over && ended != 0:
				t.Fatal("the end was signalled while the hold goes on")
			case h.deadline < before.deadline:
				t.Fatalf("the deadline moved back from %d to %d", before.deadline, h.deadline)
			case !m.over && h.deadline != m.deadline:
				t.Fatalf("deadline: model %d, hold %d", m.deadline, h.deadline)
			case m.over && before.phase != phaseHeld && (act != 0 || h.deadline != before.deadline):
				t.Fatalf("a hold that was over did something: %b", act)
			case m.over && !m.released && act&actEnd != 0 && act&actCleanUp == 0:
				t.Fatal("a lost hold is not cleaned up on the server")
			case act&actRenew != 0 && (!renew || h.phase != phaseHeld):
				t.Fatal("a renewal was sent that nobody may send")
			case act&actRenew != 0 && now.Sub(sent) < ttl/16:
				t.Fatalf("a renewal was sent %s after another, with a TTL of %s", now.Sub(sent), ttl)
			case !m.over && h.wake() > m.deadline:
				t.Fatalf("it sleeps until %d, beyond its deadline %d", h.wake(), m.deadline)
			case m.over && h.wake() != never:
				t.Fatal("a hold that is over wakes again")
			}
			if act&actRenew != 0 {
				sent = now
			}
		}
	})
}

// TestHoldSendsSeveralRenewalsBeforeItsDeadline: with no answer at all, at least
// three renewals are sent in the life of a lease; with answers, one per third.
func TestHoldSendsSeveralRenewalsBeforeItsDeadline(t *testing.T) {
	const ttl = 15 * time.Second
	for _, roll := range []float64{0, 0.5, 0.999} {
		h := newMachine(ttl, backend.Validity{For: backend.ValidFor(ttl)}, 0, true, 0, roll)
		sent := 0
		for now := backend.Instant(0); h.phase == phaseHeld; now = h.wake() {
			if h.tick(now, roll)&actRenew != 0 {
				sent++
			}
		}
		require.GreaterOrEqual(t, sent, 3)
		require.LessOrEqual(t, sent, 8)
		require.ErrorIs(t, h.cause, backend.ErrExpired)

		h = newMachine(ttl, backend.Validity{For: backend.ValidFor(ttl)}, 0, true, 0, roll)
		sent = 0
		for now := backend.Instant(0); now < backend.Instant(100*ttl); now = h.wake() {
			if h.tick(now, roll)&actRenew != 0 {
				sent++
				h.renewed(now, backend.Validity{Sent: now, For: backend.ValidFor(ttl)}, roll)
			}
		}
		require.Equal(t, phaseHeld, h.phase)
		require.GreaterOrEqual(t, sent, 299)
		require.LessOrEqual(t, sent, 340)
	}
}

// A server whose answers take long gets no renewal for each answer besides those that are
// sent anew without one: they would add up, and make it slower still.
func TestRenewalsOfASlowServerDoNotAddUp(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, takes := range []time.Duration{ttl / 100, ttl / 10, ttl / 6, ttl / 5, ttl / 4, ttl / 3, ttl * 2 / 5} {
		h := newMachine(ttl, backend.Validity{For: backend.ValidFor(ttl)}, backend.Instant(takes), true, 0, rand.Float64())
		var under []backend.Instant // when the renewals under way were sent
		sent := 0
		for now := backend.Instant(takes); now < backend.Instant(100*ttl); {
			if h.tick(now, rand.Float64())&actRenew != 0 {
				under = append(under, now)
				sent++
			}
			next := h.wake()
			if len(under) > 0 && under[0].Add(takes) <= next {
				next = under[0].Add(takes)
				h.renewed(next, backend.Validity{Sent: under[0], For: backend.ValidFor(ttl)}, rand.Float64())
				under = under[1:]
			}
			now = next
		}
		require.Equal(t, phaseHeld, h.phase, "requests of %s", takes)
		require.LessOrEqual(t, sent, 8*100, "requests of %s", takes)
		require.GreaterOrEqual(t, sent, 290, "requests of %s", takes)
	}
}

// A backend that can prove little of a hold, after a pause for example, says so in
// the length of the validity. The next renewal must come while that lasts.
func TestHoldOfShortValidityIsRenewedInTime(t *testing.T) {
	t.Parallel()
	ttl := 3 * time.Second
	for _, worth := range []time.Duration{ttl, 2 * ttl / 3, ttl / 3, ttl / 10} {
		v := backend.Validity{Sent: 1000, For: worth}
		h := newMachine(ttl, v, 1000, true, 0, 0)
		require.LessOrEqual(t, h.renewAt.Sub(v.Sent), min(ttl/3, worth/2))
		require.Positive(t, h.renewAt.Sub(v.Sent))
		later := backend.Validity{Sent: h.renewAt, For: worth}
		h.tick(h.renewAt, 0)
		h.renewed(later.Sent, later, 0)
		require.LessOrEqual(t, h.renewAt.Sub(later.Sent), min(ttl/3, worth/2))
	}
}
