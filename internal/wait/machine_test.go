package wait

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

// TestWaitAnswersEachEvent has a machine meet some events in their order, half a roll each,
// and requires the step after each of them.
func TestWaitAnswersEachEvent(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	const now = backend.Instant(time.Hour)
	at := view{now: now, roll: 0.5}
	by := func(remaining, took time.Duration) view {
		v := at
		v.refusal = refusal{known: true, since: time.Unix(1, 0), remaining: remaining, took: took}
		return v
	}
	here := func(left time.Duration) view {
		v := at
		v.here = ownHold{true, left}
		return v
	}
	type event struct {
		does func(m *machine) step
		want step
	}
	look := func(v view) func(*machine) step { return func(m *machine) step { return m.look(v) } }
	refused := func(v view) func(*machine) step { return func(m *machine) step { return m.refused(v) } }
	watched := func(v view) func(*machine) step { return func(m *machine) step { return m.watched(v) } }
	unwatched := func(m *machine) step { return m.unwatched(at) }
	trouble := func(m *machine) step { return m.trouble(0.5) }
	broken := func(m *machine) step { return m.broken(at) }
	hint := func(watchers int, own bool) func(*machine) step {
		return func(m *machine) step { return m.hint(now, watchers, own, 0.5) }
	}
	turnOf := func(others int, until backend.Instant) func(*machine) step {
		return func(m *machine) step {
			return m.turn(&turn{since: now, until: until, others: others, doubts: 1, took: ms}, now)
		}
	}
	othersDue := func(m *machine) step { return m.othersDue(7 * ms) }
	sleep := func(d time.Duration) step { return step{actSleep, d} }
	var (
		tick  = (*machine).tick
		give  = step{do: actTurn}
		ask   = step{do: actAsk}
		watch = step{do: actWatch}
	)
	for name, c := range map[string]struct {
		polls   bool // the backend cannot watch
		begins  machine
		traffic traffic
		events  []event
	}{
		"asks, watches, asks again and sleeps": {events: []event{
			{look(at), give}, {refused(at), watch}, {watched(at), give}, {refused(at), sleep(2250 * ms)}, {tick, give},
		}},
		"was refused just now": {begins: machine{asked: true}, events: []event{{look(at), watch}, {watched(at), give}}},
		"does not ask for what is held here": {
			events: []event{
				{look(here(time.Second)), give}, {refused(here(time.Second)), watch},
				{watched(here(time.Second)), sleep(time.Second + 2*ms)}, {hint(1, false), give},
			},
		},
		"asks when the holder's lease can end": {polls: true, begins: machine{polls: 9, since: time.Unix(1, 0)}, events: []event{
			{refused(by(40*ms, ms)), sleep(40*ms + 2*ms + 2500*time.Microsecond)},
		}},
		"polls less and less, and again often for a new holder": {polls: true, begins: machine{since: time.Unix(0, 0)}, events: []event{
			{refused(by(0, ms)), sleep(6750 * time.Microsecond)}, {tick, give},
			{refused(by(0, ms)), sleep(13500 * time.Microsecond)}, {tick, give},
			{func(m *machine) step { m.since = time.Unix(0, 0); return m.refused(by(0, ms)) }, sleep(6750 * time.Microsecond)},
		}},
		"backs off in trouble, until the server answers": {polls: true, events: []event{
			{trouble, sleep(28125 * time.Microsecond)}, {tick, give}, {trouble, sleep(56250 * time.Microsecond)}, {tick, give},
			{refused(at), sleep(2250 * time.Microsecond)}, {trouble, sleep(28125 * time.Microsecond)},
		}},
		"polls when there is no watch, and tries to watch later": {events: []event{
			{refused(at), watch}, {unwatched, sleep(2250 * time.Microsecond)}, {tick, give},
			{refused(at), sleep(4500 * time.Microsecond)}, {tick, give},
			{func(m *machine) step { return m.refused(view{now: now.Add(time.Second)}) }, watch},
		}},
		"asks when the watch breaks": {traffic: traffic{watching: true, yield: 3}, events: []event{
			{refused(at), sleep(2250 * ms)}, {broken, give}, {refused(at), sleep(2250 * time.Microsecond)},
		}},
		"lets as many go first as watch beside it": {traffic: traffic{watching: true, yield: 2, hinted: now}, events: []event{
			{refused(at), sleep(2250 * ms)}, {hint(3, false), sleep(2500 * time.Microsecond)}, {hint(3, false), sleep(2 * ms)}, {hint(3, false), give},
		}},
		"does not wait for those who have gone": {traffic: traffic{watching: true, yield: 5, hinted: now}, events: []event{
			{refused(at), sleep(2250 * ms)}, {hint(1, false), sleep(2 * ms)}, {hint(1, false), give},
		}},
		"lets the others go first after a release here": {traffic: traffic{watching: true, hinted: now}, events: []event{
			{refused(at), sleep(2250 * ms)}, {hint(3, true), sleep(2500 * time.Microsecond)}, {tick, give},
		}},
		"leaves a turn, and then asks without another": {polls: true, events: []event{
			{look(at), give}, {turnOf(1, now.Add(9*ms)), sleep(9 * ms)}, {tick, ask},
		}},
		"leaves a turn under a watch": {events: []event{
			{look(at), give}, {turnOf(2, now.Add(9*ms)), watch}, {watched(at), sleep(9 * ms)},
			{hint(3, false), sleep(6 * ms)}, {hint(3, false), ask},
		}},
		"leaves a turn though there is no watch": {events: []event{
			{turnOf(1, now.Add(9*ms)), watch}, {unwatched, sleep(9 * ms)}, {tick, ask},
		}},
		"comes after the turn": {polls: true, events: []event{{turnOf(1, now), ask}}},
		"has a place among many who watch": {traffic: traffic{watching: true, hinted: now}, events: []event{
			{refused(at), sleep(2250 * ms)}, {hint(8, false), sleep(2500 * time.Microsecond)}, {hint(8, false), sleep(2 * ms)},
			{hint(8, false), give},
		}},
		"stands back when others are faster": {traffic: traffic{watching: true, watchers: 8}, events: []event{
			{hint(8, false), give}, {refused(at), sleep(2250 * ms)}, {hint(8, false), sleep(2 * ms)}, {hint(8, false), give},
			{refused(at), sleep(2250 * ms)}, {hint(8, false), sleep(2500 * time.Microsecond)},
		}},
		"polls as often as it usually takes": {polls: true, traffic: traffic{usual: 400 * ms}, events: []event{
			{refused(at), sleep(112500 * time.Microsecond)},
		}},
		"sleeps on when a hand-over finds others due": {traffic: traffic{watching: true}, events: []event{
			{refused(at), sleep(2250 * ms)}, {othersDue, sleep(7 * ms)}, {hint(1, false), give},
		}},
		"asks when a hand-over finds others due and nothing tells of them": {polls: true, events: []event{
			{refused(at), sleep(2250 * time.Microsecond)}, {othersDue, give},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := c.begins
			m.traffic, m.watches = &c.traffic, !c.polls
			for i, e := range c.events {
				assert.Equal(t, e.want, e.does(&m), "event %d", i)
			}
		})
	}
}

func TestWaitCountsTheTurnsThatItsLeaseOwes(t *testing.T) {
	t.Parallel()
	m := machine{traffic: &traffic{}}
	m.refused(view{here: ownHold{holds: true}})
	assert.Zero(t, m.doubts, "who was refused by this Locker knows of no other")
	m.refused(view{})
	assert.Equal(t, mostDoubts, m.doubts)
	m.turn(&turn{others: 1, doubts: 2}, 0)
	assert.Equal(t, 1, m.doubts)
	m.hint(0, 4, true, 0.5)
	m.granted(0, time.Second)
	assert.Equal(t, 3, m.yield, "the others who watch")
	assert.Equal(t, time.Second, m.took)
}
