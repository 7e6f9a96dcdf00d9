package engine

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
func made(who, owner string, granted, released, deadline time.Duration) *Record {
	return &Record{
		Who: who, Key: "k", Owner: owner, Invoked: granted - ms, Granted: granted, released: released,
		seen: deadline, known: true, Deadline: func() (time.Duration, bool) { return deadline, true },
	}
}

func TestOverlapOracle(t *testing.T) {
	t.Parallel()
	e := &Env{Settings: &Settings{TTL: time.Second}}
	closed := made("a", "", 10*ms, -1, 90*ms)
	closed.closed = func() time.Duration { return 20 * ms }
	limited := made("a", "", 10*ms, -1, 90*ms)
	limited.maxHold = 10 * ms
	unknown := made("a", "", 10*ms, -1, 0)
	unknown.known, unknown.renews, unknown.Deadline = false, true, func() (time.Duration, bool) { return 0, false }
	unsure := made("a", "", 10*ms, 50*ms, 0) // its release said that it had been lost
	unsure.known, unsure.renews, unsure.answer, unsure.Deadline = false, true, releaseLate, unknown.Deadline
	sure := made("a", "", 10*ms, 50*ms, 0)
	sure.known, sure.renews, sure.answer, sure.Deadline = false, true, releaseFreed, unknown.Deadline
	asked := made("a", "", 10*ms, 50*ms, 0) // its release has not returned
	asked.known, asked.renews, asked.Deadline = false, true, unknown.Deadline
	stood := func(at time.Duration) *Record {
		r := made("a", "", 10*ms, 50*ms, 0)
		r.known, r.renews, r.answer, r.Deadline = false, true, releaseFreed, unknown.Deadline
		r.stood = func() time.Duration { return at }
		return r
	}
	timed := made("a", "", 10*ms, -1, 0)
	timed.known, timed.ttl, timed.Deadline = false, 100*ms, unknown.Deadline
	late := made("a", "", 10*ms, 60*ms, 40*ms) // released after it had run out
	for name, c := range map[string]struct {
		records  []*Record
		removals []time.Duration
		overlap  bool
	}{
		"one after the other":       {[]*Record{made("a", "", 10*ms, 20*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"both held":                 {[]*Record{made("a", "", 10*ms, 50*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"given in another order":    {[]*Record{made("b", "", 30*ms, 40*ms, 90*ms), made("a", "", 10*ms, 50*ms, 90*ms)}, nil, true},
		"before the deadline":       {[]*Record{made("a", "", 10*ms, -1, 50*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"after the deadline":        {[]*Record{made("a", "", 10*ms, -1, 29*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"released when it was over": {[]*Record{late, made("b", "", 45*ms, 50*ms, 90*ms)}, nil, false},
		"same owner":                {[]*Record{made("a", "o", 10*ms, 50*ms, 90*ms), made("b", "o", 30*ms, 40*ms, 90*ms)}, nil, false},
		"two owners":                {[]*Record{made("a", "o", 10*ms, 50*ms, 90*ms), made("b", "p", 30*ms, 40*ms, 90*ms)}, nil, true},
		"owner and none":            {[]*Record{made("a", "o", 10*ms, 50*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"not with the neighbour":    {[]*Record{made("a", "", 10*ms, 80*ms, 90*ms), made("a", "", 20*ms, 20*ms, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"removed by force":          {[]*Record{made("a", "", 10*ms, -1, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, []time.Duration{20 * ms}, false},
		"removed before":            {[]*Record{made("a", "", 10*ms, -1, 90*ms), made("b", "", 30*ms, 40*ms, 90*ms)}, []time.Duration{5 * ms}, true},
		"client closed":             {[]*Record{closed, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"maximum hold":              {[]*Record{limited, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"deadline unknown, renewed": {[]*Record{unknown, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"lost by its release":       {[]*Record{unsure, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"its release is under way":  {[]*Record{asked, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"stood still since":         {[]*Record{stood(20 * ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, false},
		"stood still later":         {[]*Record{stood(40 * ms), made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"held to its release":       {[]*Record{sure, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
		"deadline unknown, not":     {[]*Record{timed, made("b", "", 30*ms, 40*ms, 90*ms)}, nil, true},
	} {
		text, _, _ := e.overlap(c.records, c.removals)
		assert.Equal(t, c.overlap, text != "", "%s: %s", name, text)
	}
}

// Where nothing but the release tells how long a renewed lease was held, a request or a
// process that was held up makes the overlap no proof.
func TestOverlapIsAsSureAsItsEnd(t *testing.T) {
	t.Parallel()
	e := &Env{Settings: &Settings{TTL: time.Second}}
	next := made("b", "", 30*ms, 40*ms, 90*ms)
	_, _, sure := e.overlap([]*Record{made("a", "", 10*ms, 50*ms, 90*ms), next}, nil)
	assert.True(t, sure, "both tell their deadlines")
	told := made("a", "", 10*ms, 50*ms, 0)
	told.known, told.renews, told.answer = false, true, releaseFreed
	told.Deadline = func() (time.Duration, bool) { return 0, false }
	text, _, sure := e.overlap([]*Record{told, next}, nil)
	assert.NotEmpty(t, text)
	assert.False(t, sure, "the earlier tells none")
}

func TestTokenOracle(t *testing.T) {
	t.Parallel()
	grant := func(invoked, granted time.Duration, token uint64) *Record {
		return &Record{Who: "a", Invoked: invoked, Granted: granted, Token: token}
	}
	for name, c := range map[string]struct {
		records  []*Record
		byReturn bool
		want     string
	}{
		"rising":                   {[]*Record{grant(1, 2, 5), grant(3, 4, 6), grant(5, 6, 9)}, false, ""},
		"back":                     {[]*Record{grant(1, 2, 5), grant(3, 4, 7), grant(5, 6, 6)}, false, "went back"},
		"back later":               {[]*Record{grant(1, 2, 9), grant(3, 4, 10), grant(5, 6, 11), grant(7, 8, 3)}, false, "went back"},
		"twice":                    {[]*Record{grant(1, 2, 5), grant(3, 4, 5)}, false, "given twice"},
		"zero":                     {[]*Record{grant(1, 2, 0)}, false, "expected a token from 1"},
		"too large":                {[]*Record{grant(1, 2, 1<<63)}, false, "expected a token from 1"},
		"a wait that began early":  {[]*Record{grant(1, 9, 6), grant(2, 3, 5)}, false, ""},
		"calls that overlap":       {[]*Record{grant(1, 9, 4), grant(2, 3, 5)}, false, ""},
		"in the order of returns":  {[]*Record{grant(1, 9, 4), grant(2, 3, 5)}, true, "went back"},
		"rising by returns":        {[]*Record{grant(1, 9, 6), grant(2, 3, 5)}, true, ""},
		"one long among short":     {[]*Record{grant(1, 100, 50), grant(2, 3, 5), grant(4, 5, 6), grant(6, 7, 7)}, false, ""},
		"back beside one long one": {[]*Record{grant(1, 100, 50), grant(2, 3, 5), grant(4, 5, 6), grant(7, 8, 4)}, false, "went back"},
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
	res := one(t, memory(), &Rule{Run: func(e *Env) {
		var u Updates
		h := e.Locker().MustTry(e.Key("a"))
		e.Each(8, func(int) { // eight at a time, under one lease
			for range 200 {
				u.Work(h)
			}
		})
		u.Check(e, h.Key)
	}})
	assert.Equal(t, Fail, res.Verdict)
	assert.Contains(t, res.Evidence, "updates made under the lock were lost")
}

func TestResidueOracle(t *testing.T) {
	t.Parallel()
	e := newEnv(t.Context(), &Settings{}, &Rule{}, 1, time.Second)
	stop := make(chan struct{})
	label := fmt.Sprintf("label %d", time.Now().UnixNano())
	e.Labelled(label, func() {
		for range 5 {
			go func() { go leak(stop); leak(stop) }()
		}
	})
	n, stacks := e.Settles(label, 3, 100*ms)
	assert.Equal(t, 10, n)
	assert.Contains(t, stacks, "engine.leak")
	n, _ = residue("another label")
	assert.Zero(t, n)
	close(stop)
	n, _ = e.Settles(label, 0, 5*time.Second)
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
	h := newCallLog(time.Now())
	open := h.Begin("client 1", "Acquire", "k")
	for i := range maxEntries * 2 {
		h.End(h.Begin("client 2", "TryAcquire", "k"), fmt.Sprint("result ", i))
	}
	text := h.around("k")
	assert.Contains(t, text, fmt.Sprint("result ", maxEntries*2-1))
	assert.Contains(t, text, "earlier ones")
	assert.LessOrEqual(t, len(h.entries), maxEntries)
	assert.Contains(t, h.hanging(), "client 1 in Acquire")
	h.End(open, Outcome(context.Canceled))
	assert.Empty(t, h.hanging())
	assert.Contains(t, h.around("k"), "matches context.Canceled")
	for range 50 {
		h.ended(h.Begin("client 3", "TryAcquire", "k"), lock.ErrHeld)
	}
	assert.Contains(t, h.around("k"), "50 refusals")
	assert.Contains(t, h.around("k"), "matches context.Canceled", "refusals don't hide what happened before")
	assert.Equal(t, "no calls were made", newCallLog(time.Now()).around("k"))
}
