package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock"
)

const ms = time.Millisecond

// made is a hold with a deadline, as an oracle sees it.
func made(who, owner string, granted, released, deadline time.Duration) *record {
	return &record{
		who: who, key: "k", owner: owner, invoked: granted - ms, granted: granted, released: released,
		seen: deadline, known: true, deadline: func() (time.Duration, bool) { return deadline, true },
	}
}

func TestOverlapOracle(t *testing.T) {
	t.Parallel()
	e := &env{settings: &settings{ttl: time.Second}}
	closed := made("a", "", 10*ms, -1, 90*ms)
	closed.closed = func() time.Duration { return 20 * ms }
	limited := made("a", "", 10*ms, -1, 90*ms)
	limited.maxHold = 10 * ms
	unknown := made("a", "", 10*ms, -1, 0)
	unknown.known, unknown.renews, unknown.deadline = false, true, func() (time.Duration, bool) { return 0, false }
	unsure := made("a", "", 10*ms, 50*ms, 0) // its release said that it had been lost
	unsure.known, unsure.renews, unsure.unsure, unsure.deadline = false, true, true, unknown.deadline
	sure := made("a", "", 10*ms, 50*ms, 0)
	sure.known, sure.renews, sure.deadline = false, true, unknown.deadline
	timed := made("a", "", 10*ms, -1, 0)
	timed.known, timed.ttl, timed.deadline = false, 100*ms, unknown.deadline
	late := made("a", "", 10*ms, 60*ms, 40*ms) // released after it had run out
	for name, c := range map[string]struct {
		records  []*record
		removals []time.Duration
		overlap  bool
	}{
		"one after the other":       {[]*record{made("a", "", 10*ms, 20*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"both held":                 {[]*record{made("a", "", 10*ms, 50*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"given in another order":    {[]*record{made("b", "", 30*ms, 40*ms, 90*ms), made("a", "", 10*ms, 50*ms, 90*ms)}, nil, true},
		"before the deadline":       {[]*record{made("a", "", 10*ms, -1, 50*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"after the deadline":        {[]*record{made("a", "", 10*ms, -1, 29*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"released when it was over": {[]*record{late, made("b", "", 45*ms, 50*ms, 90*ms)}, nil, false},
		"same owner":                {[]*record{made("a", "o", 10*ms, 50*ms, 90*ms), made("b", "o", 30*ms, 40*ms, 90*ms)}, nil, false},
		"two owners":                {[]*record{made("a", "o", 10*ms, 50*ms, 90*ms), made("b", "p", 30*ms, 40*ms, 90*ms)}, nil, true},
		"owner and none":            {[]*record{made("a", "o", 10*ms, 50*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"not with the neighbour":    {[]*record{made("a", "", 10*ms, 80*ms, 90*ms), made("a", "", 20*ms, 20*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"removed by force":          {[]*record{made("a", "", 10*ms, -1, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, []time.Duration{20 * ms}, false},
		"removed before":            {[]*record{made("a", "", 10*ms, -1, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, []time.Duration{5 * ms}, true},
		"client closed":             {[]*record{closed, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"maximum hold":              {[]*record{limited, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"deadline unknown, renewed": {[]*record{unknown, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"lost by its release":       {[]*record{unsure, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"held to its release":       {[]*record{sure, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"deadline unknown, not":     {[]*record{timed, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
	} {
		text, _ := e.overlap(c.records, c.removals)
		assert.Equal(t, c.overlap, text != "", "%s: %s", name, text)
	}
}

func TestTokenOracle(t *testing.T) {
	t.Parallel()
	grant := func(invoked, granted time.Duration, token uint64) *record {
		return &record{who: "a", invoked: invoked, granted: granted, token: token}
	}
	for name, c := range map[string]struct {
		records  []*record
		byReturn bool
		want     string
	}{
		"rising":                   {[]*record{grant(1, 2, 5), grant(3, 4, 6), grant(5, 6, 9)}, false, ""},
		"back":                     {[]*record{grant(1, 2, 5), grant(3, 4, 7), grant(5, 6, 6)}, false, "went back"},
		"back later":               {[]*record{grant(1, 2, 9), grant(3, 4, 10), grant(5, 6, 11), grant(7, 8, 3)}, false, "went back"},
		"twice":                    {[]*record{grant(1, 2, 5), grant(3, 4, 5)}, false, "given twice"},
		"zero":                     {[]*record{grant(1, 2, 0)}, false, "expected a token from 1"},
		"too large":                {[]*record{grant(1, 2, 1<<63)}, false, "expected a token from 1"},
		"a wait that began early":  {[]*record{grant(1, 9, 6), grant(2, 3, 5)}, false, ""},
		"calls that overlap":       {[]*record{grant(1, 9, 4), grant(2, 3, 5)}, false, ""},
		"in the order of returns":  {[]*record{grant(1, 9, 4), grant(2, 3, 5)}, true, "went back"},
		"rising by returns":        {[]*record{grant(1, 9, 6), grant(2, 3, 5)}, true, ""},
		"one long among short":     {[]*record{grant(1, 100, 50), grant(2, 3, 5), grant(4, 5, 6), grant(6, 7, 7)}, false, ""},
		"back beside one long one": {[]*record{grant(1, 100, 50), grant(2, 3, 5), grant(4, 5, 6), grant(7, 8, 4)}, false, "went back"},
	} {
		text, _ := tokenOrder(c.records, c.byReturn)
		if c.want == "" {
			assert.Empty(t, text, name)
		} else {
			assert.Contains(t, text, c.want, name)
		}
	}
}

func TestLostUpdateOracle(t *testing.T) {
	t.Parallel()
	res := one(t, memory(), &rule{run: func(e *env) {
		var u updates
		h := e.locker().mustTry(e.key("a"))
		e.each(8, func(int) { // eight at a time, under one lease
			for range 200 {
				u.work(h)
			}
		})
		u.check(e, h.key)
	}})
	assert.Equal(t, Fail, res.Verdict)
	assert.Contains(t, res.Evidence, "updates made under the lock were lost")
}

func TestResidueOracle(t *testing.T) {
	t.Parallel()
	e := newEnv(t.Context(), &settings{}, &rule{}, 1, time.Second)
	stop := make(chan struct{})
	label := fmt.Sprintf("label %d", time.Now().UnixNano())
	e.labelled(label, func() {
		for range 5 {
			go func() { go leak(stop); leak(stop) }()
		}
	})
	n, stacks := e.settles(label, 3, 100*ms)
	assert.Equal(t, 10, n)
	assert.Contains(t, stacks, "conformance.leak")
	n, _ = residue("another label")
	assert.Zero(t, n)
	close(stop)
	n, _ = e.settles(label, 0, 5*time.Second)
	assert.Zero(t, n)
}

func leak(stop chan struct{}) { <-stop }

func TestStallMeter(t *testing.T) {
	t.Parallel()
	m := newStallMeter()
	m.close()
	hour := time.Now().Add(time.Hour)
	m.stalls = []stall{{hour, 80 * ms}, {hour.Add(time.Hour), 60 * ms}}
	assert.Equal(t, 80*ms, m.since(hour.Add(-time.Second)))
	assert.Equal(t, 60*ms, m.since(hour.Add(time.Second)))
	assert.Zero(t, m.since(hour.Add(2*time.Hour)))
	assert.NotEmpty(t, m.counts, "the runtime's histogram of waiting goroutines is gone")
	// A goroutine that had to wait: the histogram has grown in a late bucket.
	h := m.sample[0].Value.Float64Histogram()
	for i, b := range h.Buckets {
		if b > 2 && b < 1000 {
			m.counts[i]--
			break
		}
	}
	assert.Greater(t, m.since(time.Now().Add(-time.Second)), time.Second)
}

func TestHistoryKeepsWhatMatters(t *testing.T) {
	t.Parallel()
	h := newHistory(time.Now())
	open := h.begin("client 1", "Acquire", "k")
	for i := range maxEvents * 2 {
		h.end(h.begin("client 2", "TryAcquire", "k"), fmt.Sprint("result ", i))
	}
	text := h.around("k")
	assert.Contains(t, text, fmt.Sprint("result ", maxEvents*2-1))
	assert.Contains(t, text, "earlier ones")
	assert.LessOrEqual(t, len(h.events), maxEvents)
	assert.Contains(t, h.hanging(), "client 1 in Acquire")
	h.end(open, outcome(context.Canceled))
	assert.Empty(t, h.hanging())
	assert.Contains(t, h.around("k"), "matches context.Canceled")
	for range 50 {
		h.ended(h.begin("client 3", "TryAcquire", "k"), lock.ErrHeld)
	}
	assert.Contains(t, h.around("k"), "50 refusals")
	assert.Contains(t, h.around("k"), "matches context.Canceled", "refusals don't hide what happened before")
	assert.Equal(t, "no calls were made", newHistory(time.Now()).around("k"))
}
