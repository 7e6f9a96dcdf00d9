package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// maxNodes bounds the size of the set: more nodes make it slower and hardly safer.
const maxNodes = 7

// debtTime is for how much longer than its TTL a hold is released at a node that does
// not answer: a frozen node carries out the grant when it goes on.
const debtTime = time.Minute

// vote is what the answer of one node means.
type vote uint8

const (
	pending vote = iota // no answer yet
	yes                 // the node did what was asked
	no                  // the node refused: somebody else has the key, or nobody
	failed              // the node did not answer, or can't be counted
)

// tally counts the votes of the nodes.
type tally struct {
	votes  [maxNodes]vote
	nodes  int // of the set, whether they were asked or not
	quorum int
}

func (t *tally) count(v vote) int {
	n := 0
	for _, x := range t.votes[:t.nodes] {
		if x == v {
			n++
		}
	}
	return n
}

// verdict is what the votes say together.
type verdict uint8

const (
	open        verdict = iota // more answers are needed
	agreed                     // a majority said yes
	refused                    // no majority can say yes, and failures are not the reason
	unavailable                // so many nodes failed that no majority could have said yes
)

// toAll is the verdict on a request that needs the yes of a majority. When that can't
// be had because nodes failed, the others are waited for, so that what they grant can
// be given back.
func (t *tally) toAll() verdict {
	y, f, p := t.count(yes), t.count(failed), t.count(pending)
	switch {
	case y >= t.quorum:
		return agreed
	case f > t.nodes-t.quorum && p == 0:
		return unavailable
	case y+p < t.quorum && f+p <= t.nodes-t.quorum:
		return refused
	}
	return open
}

// gone is the verdict on a renewal: agreed, or refused when a majority can't have
// the hold any more whatever the nodes say that failed, or else unavailable.
func (t *tally) gone() verdict {
	y, n, f, p := t.count(yes), t.count(no), t.count(failed), t.count(pending)
	switch {
	case y >= t.quorum:
		return agreed
	case n > t.nodes-t.quorum:
		return refused
	case y+p < t.quorum && n+p <= t.nodes-t.quorum, f > 0 && p == 0:
		return unavailable
	}
	return open
}

// ended is the verdict on a release: agreed when a majority no longer has the hold,
// refused when a majority did not have it.
func (t *tally) ended() verdict {
	y, n, p := t.count(yes), t.count(no), t.count(pending)
	switch {
	case n >= t.quorum:
		return refused
	case y >= t.quorum, y+n >= t.quorum && n+p < t.quorum:
		return agreed
	case y+n+p < t.quorum:
		return unavailable
	}
	return open
}

// everybody is the verdict on requests to nodes each of which is waited for.
func (t *tally) everybody() verdict {
	if t.count(pending) > 0 {
		return open
	}
	return agreed
}

// round is one request to every node, at the same time.
type round struct {
	b       *majority
	ttl     time.Duration
	sent    backend.Instant // before the first request
	until   backend.Instant // for how long a release of the hold is repeated
	meaning func(*call) vote
	judge   func(*tally) verdict
	telling bool          // an error names the nodes that said no, too
	done    chan struct{} // holds one: the verdict is known
	lateNo  atomic.Int32  // how many nodes refused after the verdict

	mu      sync.Mutex // guards the rest
	tally   tally
	calls   [maxNodes]call
	verdict verdict
	over    bool          // nobody waits any more
	silence time.Duration // for how long nodes did not answer, if their time ran out before the verdict
	// after is told about every answer that comes when nobody waits any more, with
	// the mutex free.
	after func(*call, vote)
}

func (b *majority) newRound(ttl time.Duration, judge func(*tally) verdict, meaning func(*call) vote) *round {
	r := &round{b: b, ttl: ttl, judge: judge, meaning: meaning, done: make(chan struct{}, 1)}
	r.tally.nodes, r.tally.quorum = len(b.nodes), b.quorum
	r.sent = b.clock.Now()
	r.until = r.sent.Add(ttl + debtTime)
	return r
}

// ask sends the script to every node whose vote is not known beforehand.
func (r *round) ask(s wire.Script, args []any, release bool) {
	r.mu.Lock()
	var to [maxNodes]bool
	for i := range r.b.nodes {
		if to[i] = r.tally.votes[i] == pending; to[i] {
			r.calls[i] = call{round: r, index: i, script: s, args: args, release: release, until: r.until}
		}
	}
	r.mu.Unlock()
	for i, n := range r.b.nodes {
		if to[i] {
			n.send(&r.calls[i], r.sent)
		}
	}
}

// answer takes in the answer of a node.
func (r *round) answer(c *call) {
	v := r.meaning(c)
	r.mu.Lock()
	if !r.over {
		r.tally.votes[c.index] = v
		if r.verdict == open {
			if r.verdict = r.judge(&r.tally); r.verdict != open {
				r.done <- struct{}{}
			}
		}
	}
	over, after := r.over, r.after
	r.mu.Unlock()
	if over && after != nil {
		after(c, v)
	}
}

// wait returns when the verdict is known, the nodes have had their time, or ctx
// ends. Nodes that have not answered by then have failed. What they answer later
// is told to after, if there is one.
func (r *round) wait(ctx context.Context, limit time.Duration) verdict {
	r.mu.Lock()
	known := r.verdict != open
	r.mu.Unlock()
	var silence time.Duration
	if !known {
		timer := time.NewTimer(limit - r.b.clock.Now().Sub(r.sent))
		select {
		case <-r.done:
		case <-timer.C:
			silence = limit
		case <-ctx.Done():
		}
		timer.Stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.verdict == open {
		r.silence = silence
		t := r.tally
		for i := range t.votes[:t.nodes] {
			if t.votes[i] == pending {
				t.votes[i] = failed
			}
		}
		r.verdict = r.judge(&t)
	}
	return r.verdict
}

// refusedByAll reports whether all nodes have refused by now, and then counts the votes that came
// after the verdict too.
func (r *round) refusedByAll() bool {
	if r.tally.count(no)+int(r.lateNo.Load()) < r.tally.nodes {
		return false
	}
	for i := range r.tally.votes[:r.tally.nodes] {
		r.tally.votes[i] = no
	}
	return true
}
