package wait

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

// machine is the wait at the head of a lane as a pure state machine: what happened and when
// goes in, what to do next comes out. It has no goroutine, no clock and no I/O.
//
//	           refused        watched
//	turn, ask --------> watch --------> ask again
//	 ^    |                |
//	 |    | trouble        | there is a watch, or none can be had
//	 |    v                v
//	 +--- sleep <----------+
//	 tick, hint, broken, othersDue
//
// The second question closes the gap between the first refusal and the watch. A backend
// that can't watch has no hints: refused, its waiters sleep until the next tick, and ask. A lease that is
// handed over, the end of the context and Close end a sleep, and the wait, without a question
// to the machine.
type machine struct {
	*traffic
	watches bool // the backend can watch keys

	asked bool   // the server was asked just now and refused
	slept bool   // there was a wait
	after action // when the sleep has ended: ask, or leave a turn and ask

	fails   int             // errors of the server in a row
	polls   int             // refusals in a row without a watch, and by the same holder
	since   time.Time       // of that holder
	passed  backend.Instant // when a poll first saw that the key had gone to another holder, or zero
	lost    int             // turns in a row that another client took
	leaving *turn           // that is left to others once there is a watch, or nil

	// doubts are the turns that the lease leaves to others of whom only refusals tell.
	doubts int
}

// traffic is what a lane knows of the other clients at its key. It goes from one head of the
// lane to the next.
type traffic struct {
	watching   bool            // there is a watch
	watchFails int             // watches in a row that failed or broke
	watchAt    backend.Instant // when the next watch may begin

	watchers int             // clients that watch the key, by the last hint
	yield    int             // releases to let pass, so that the other clients have their turn
	hinted   backend.Instant // the last signal of the watch
	apart    time.Duration   // how long it came after the one before
	took     time.Duration   // how long the server took to grant the last lease
	usual    time.Duration   // how long others had the key in turn before a poll found it free
}

// action is what the driver of a wait has to do next.
type action uint8

const (
	actTurn  action = iota // leave others their turn, if they have one, else ask
	actAsk                 // ask the server
	actWatch               // begin to watch
	actSleep               // sleep until a signal or for so long
)

// step is an action, with the time for which to sleep.
type step struct {
	do action
	d  time.Duration
}

// view is what the driver sees at an event. roll is uniform in [0, 1).
type view struct {
	now     backend.Instant
	roll    float64
	refusal refusal
	here    ownHold
}

// refusal is the last word of the server on who holds the key.
type refusal struct {
	known     bool
	since     time.Time     // of the holder
	remaining time.Duration // of its lease; zero: unknown
	took      time.Duration // how long the answer took
}

// ownHold is whether this Locker itself holds the key, and for how long.
type ownHold struct {
	holds bool
	left  time.Duration
}

// How long a waiter sleeps before it asks the server again without being told
// to. What begins with poll or trouble is lengthened at random, by up to a quarter, so that
// those who were refused together don't ask together.
const (
	pollWatched   = 2 * time.Second       // under a watch: only for signals that got lost
	watchBegins   = 2 * time.Second       // for a watch to begin, else the waiter polls
	pollFirst     = 15 * time.Millisecond // without a watch, less if the server is fast, growing to
	pollMost      = 250 * time.Millisecond
	troubleFirst  = 25 * time.Millisecond // after an error of the server, whatever it said before, doubling to
	troubleMost   = 2 * time.Second
	courtesyLeast = 2 * time.Millisecond   // for another client to take a key that was left to it
	courtesyMost  = 25 * time.Millisecond  // and to give it back, if that is what it usually takes
	expiryPadding = 2 * time.Millisecond   // after the time at which the holder's lease can end
	expirySpread  = 100 * time.Millisecond // at most, between those who wait for that time
)

// look is the beginning, and what follows a new watch. It is not worth asking while this
// Locker itself holds the key and a watch will tell of its release, nor when the server was
// asked a moment ago.
func (m *machine) look(v view) step {
	if !m.asked && (m.slept || !m.watching || !v.here.holds) {
		return step{do: actTurn}
	}
	m.asked = false
	return m.refused(v)
}

// refused is the server's word that somebody holds the key.
func (m *machine) refused(v view) step {
	m.fails = 0
	if !v.here.holds {
		m.doubts = mostDoubts
		m.standBack(v.roll)
	}
	if m.watches && !m.watching && v.now >= m.watchAt {
		return step{do: actWatch}
	}
	return m.sleep(m.interval(v), actTurn)
}

// trouble is an error of the server.
func (m *machine) trouble(roll float64) step {
	m.fails++
	return m.sleep(backoff(troubleFirst, troubleMost, m.fails, roll), actTurn)
}

// watched is the beginning of a watch.
func (m *machine) watched(v view) step {
	m.watching = true
	if m.leaving != nil {
		return m.leave(v.now)
	}
	return m.look(v)
}

// unwatched is a watch that cannot be had for now.
func (m *machine) unwatched(v view) step {
	m.watchFailed(v)
	if m.leaving != nil {
		return m.leave(v.now)
	}
	return m.sleep(m.interval(v), actTurn)
}

// watchFailed has the lane poll for a while before the next watch.
func (m *machine) watchFailed(v view) {
	m.watchFails++
	m.watchAt = v.now.Add(backoff(troubleFirst, troubleMost, m.watchFails, v.roll))
}

// turn is a turn that others have: wait while they have it, or until one of them has had it.
func (m *machine) turn(t *turn, now backend.Instant) step {
	m.doubts, m.usual = t.doubts-1, t.usual
	m.yield = t.others - 1
	if m.watching && m.hinted < t.since {
		m.yield++ // the hint of the release itself is still to come
	}
	m.took, m.hinted, m.watchers = t.took, now, t.others+1
	m.leaving = t
	if m.watches && !m.watching {
		return step{do: actWatch}
	}
	return m.leave(now)
}

func (m *machine) leave(now backend.Instant) step {
	d := m.leaving.until.Sub(now)
	m.leaving = nil
	if d <= 0 {
		return step{do: actAsk}
	}
	return m.sleep(d, actAsk)
}

// tick is the end of a sleep, by the passing of time or by a hand-over that failed.
func (m *machine) tick() step { return step{do: m.after} }

// hint is a signal of the watch. own says that a release of this Locker is what it tells of.
// The key is left to other clients for a moment when it is their turn: they take it, and
// their release is the next hint; if they don't, the courtesy has been enough.
func (m *machine) hint(now backend.Instant, watchers int, own bool, roll float64) step {
	m.watchFails = 0
	m.apart, m.hinted = now.Sub(m.hinted), now
	if m.watchers == 0 && !own {
		m.yield = max(m.yield, int(roll*float64(watchers/2))) // a place among all those who come new
	}
	m.watchers = watchers
	if watchers > 0 {
		if own {
			m.yield = watchers - 1
		}
		m.yield = min(m.yield, watchers)
	}
	m.yield--
	if m.yield >= 0 {
		// If nobody takes it, they don't all ask at once.
		d := m.courtesy()
		return m.sleep(d+min(time.Duration(m.yield)*d/4, pollMost), m.after)
	}
	return m.tick()
}

// broken is the end of the watch: ask, and set up another one later.
func (m *machine) broken(v view) step {
	m.watching = false
	m.watchers, m.yield = 0, 0
	m.watchFailed(v)
	return m.tick()
}

// othersDue is a hand-over that was refused because others are due, in the sleep of so long.
// The hint that the watch has for everybody counts whose turn it is.
func (m *machine) othersDue(d time.Duration) step {
	if m.watching {
		return m.sleep(d, m.after)
	}
	return m.tick()
}

// granted is a grant by the server, which took so long.
func (m *machine) granted(now backend.Instant, took time.Duration) {
	m.yield, m.took = m.watchers-1, took
	m.usual = (m.usual + m.passedOver(now)) / 2
}

// passedOver is for how long others have had the key in turn, as far as polls saw it.
func (m *machine) passedOver(now backend.Instant) time.Duration {
	if m.passed == 0 {
		return 0
	}
	return now.Sub(m.passed)
}

// standBack follows a refusal. Where it was this client's turn, and another took it, there
// are more of them than turns, as many as watch at most: each lets some releases pass, more
// after each turn that it has lost, up to half of those who watch.
func (m *machine) standBack(roll float64) {
	if !m.watching || m.watchers == 0 || m.yield >= 0 {
		return
	}
	m.lost++
	m.yield = int(roll * float64(min(1<<min(m.lost, 16), m.watchers/2)))
}

func (m *machine) sleep(d time.Duration, after action) step {
	m.slept, m.after = true, after
	return step{actSleep, d}
}

// interval is how long to sleep after a refusal: not longer than the holder's
// lease can last, nor than the poll interval.
func (m *machine) interval(v view) time.Duration {
	d := spread(pollWatched, v.roll)
	if !m.watching {
		// A key that changes hands may be free soon; a holder of long standing may
		// stay for as long again.
		if v.refusal.known && !v.refusal.since.Equal(m.since) {
			if m.passed == 0 && !m.since.IsZero() {
				m.passed = v.now
			}
			m.polls, m.since = 0, v.refusal.since
		}
		m.polls++
		d = backoff(m.pollFirst(v), pollMost, m.polls, v.roll)
	}
	if left := v.refusal.remaining; left > 0 {
		// The other clients that wait know the same time. A holder that renews would
		// bring them into step.
		d = min(d, left+expiryPadding+time.Duration(v.roll*float64(min(left/8, expirySpread))))
	}
	if v.here.holds {
		d = min(d, max(v.here.left, 0)+expiryPadding)
	}
	return d
}

// pollFirst is the pause after the first refusal by a holder. Many who poll one key make as
// many looks in vain for a grant as they pause too short. So each makes it a quarter of
// what the wait usually takes, which is a few looks for each grant. One who waits for longer
// than usual was unlucky, or is passed over by few who are quick: it looks more often again.
func (m *machine) pollFirst(v view) time.Duration {
	passedOver := m.passedOver(v.now)
	d := m.usual / 4
	if m.usual == 0 {
		d = min(passedOver/8, pollMost/4)
	}
	for late := m.usual * 3 / 2; m.usual > 0 && passedOver > late && d > 0; late += m.usual / 2 {
		d /= 2
	}
	return max(min(pollFirst, courtesyLeast+4*v.refusal.took), min(d, pollMost))
}

// courtesy is how long the key is left to other clients: so long that one of them can
// take it, and a little longer than from one release to the next, since then the next
// release says that it was taken, and costs the server nothing.
func (t *traffic) courtesy() time.Duration {
	return max(min(courtesyLeast+4*t.took, pollMost), min(t.apart*3/2, courtesyMost))
}

// backoff grows from first to most, doubling from the second time on.
func backoff(first, most time.Duration, times int, roll float64) time.Duration {
	d := first
	for range min(times, 16) - 1 {
		d = min(2*d, most)
	}
	return spread(d, roll)
}

// spread lengthens d by up to a quarter.
func spread(d time.Duration, roll float64) time.Duration {
	return d + time.Duration(roll*float64(d)/4)
}
