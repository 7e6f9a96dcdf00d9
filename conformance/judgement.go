package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// A rule is judged by evidence, never by what the machine did. What was seen in the
// wrong order is a broken rule however long it took. Two kinds of expectation rest on
// time, and count only as far as time was kept:
//
//   - That a hold is still there, in whatever words, counts only if the hold had not run
//     out by the end of the call that is judged: by its own deadline, or where it tells
//     none, by the start of the last confirmed call and its TTL.
//   - That something came in time counts only if neither this process nor a request was
//     held up for a good part of that time.
//
// Otherwise the case is inconclusive. It is repeated with a TTL that is long beside what
// held it up, and is reported as inconclusive if that goes on.

// inconclusive ends a case that cannot be judged.
type inconclusive struct{ reason string }

// tooSlowf ends a case whose time has run out for no fault of the lock.
func (e *env) tooSlowf(key, format string, args ...any) {
	e.hist.note("suite", key, "too slow")
	panic(inconclusive{fmt.Sprintf(format, args...)})
}

const (
	attempts = 4
	// A TTL is chosen so that a usual request takes no more than a tenth of it, and after
	// an attempt that could not be judged, what held it up no more than a thirtieth.
	requestsPerTTL = 10
	delaysPerTTL   = 30
	longestRepeat  = 12 * time.Second // or eight times the TTL of the run
)

// leastTimeout is how long a call takes at least that gives up for want of an answer. One
// that says so sooner has not waited for any. It does not grow with the TTL, since the
// time limits of a client need not.
const leastTimeout = 50 * time.Millisecond

// usualTimeout is how long a client may wait for the answer to one request, before it says
// that the server does not answer. Such limits do not grow with the TTL.
const usualTimeout = 150 * time.Millisecond

// timely is the excuse of a thing that takes a part of a TTL. With the longest TTL that is
// tried there is time for more: a lock whose own requests are so slow that it loses what
// it renews is wrong.
func (e *env) timely() excuse {
	from := e.ttl / 20
	if e.ttl >= longestRepeat {
		from = e.ttl / 4
	}
	return excuse{max(from, stallNoted), anyRequest}
}

// patient is the excuse of what a control timer with slack has waited for.
func (e *env) patient() excuse { return excuse{e.slack() / 5, anyRequest} }

// excuse is what a late thing may be the fault of.
type excuse struct {
	from time.Duration // for how long it must have been held up; zero: nothing excuses it
	by   holdUp
}

// holdUp is what may hold a thing up.
type holdUp int

const (
	allRequests holdUp = iota // requests as a rule, where the best of several is judged; or this process
	anyRequest                // one request, or this process for once
	anyAnswer                 // the same, or a request that was never answered
	thisProcess               // nothing else, where the lock has no request to wait for, or is to judge it itself
)

// heldUp is the longest that this process stood still, or that a request of the case or of
// the bystander took. The faults that are put into requests don't count, the rest of their time does.
func (e *env) heldUp(by holdUp) time.Duration {
	stood := e.stalls.since(e.hist.base)
	switch by {
	case anyRequest:
		return max(stood, e.hist.slowest(), e.bystander.since(e.hist.base))
	case anyAnswer:
		return max(stood, e.hist.slowest(), e.hist.neverAnswered(), e.bystander.since(e.hist.base))
	case allRequests:
		return max(stood, e.pace.of(0.5))
	}
	return stood
}

// nextTTL is the TTL of an attempt after one with the TTL prev that was held up for so
// long: a multiple of that of the run, and that itself for the first one on a fast server.
func (s *settings) nextTTL(prev, heldUp time.Duration) time.Duration {
	ttl := requestsPerTTL * s.pace.usual()
	if prev > 0 {
		ttl = max(ttl, 2*prev, delaysPerTTL*heldUp)
	}
	ttl = min(ttl, max(8*s.ttl, longestRepeat))
	return s.fit((max(ttl, 1) + s.ttl - 1) / s.ttl * s.ttl)
}

// limit is when a case is given up as hanging. Slow requests make it longer.
func (s *settings) limit(r *rule, ttl time.Duration) time.Duration {
	const swift = 50 * time.Millisecond
	limit := r.limit(ttl)
	return limit + min(limit*(s.pace.usual()/time.Millisecond)/(swift/time.Millisecond), 3*limit)
}

// pace is how long requests take on this server now.
type pace struct {
	mu   sync.Mutex
	last [64]time.Duration
	n    int
}

func (p *pace) add(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[p.n%len(p.last)] = d
	p.n++
}

// usual is what nine of ten requests have not exceeded.
func (p *pace) usual() time.Duration { return p.of(0.9) }

// of is what the given part of the last requests has not exceeded, and zero while few are
// known.
func (p *pace) of(part float64) time.Duration {
	p.mu.Lock()
	known := slices.Clone(p.last[:min(p.n, len(p.last))])
	p.mu.Unlock()
	if len(known) < 10 {
		return 0
	}
	slices.Sort(known)
	return known[int(float64(len(known))*part)]
}

// lapses takes note that the hold is left to run out, or may be ended by others. No
// expectation rests on it from now on.
func (r *record) lapses() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lapsing = true
}

// lapsing is lapses for every hold of the key.
func (e *env) lapsing(key string) {
	for _, r := range e.recordsOf(key) {
		r.lapses()
	}
}

func (e *env) recordsOf(key string) []*record {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*record
	for _, r := range e.records {
		if r.key == key {
			out = append(out, r)
		}
	}
	return out
}

// confirmed takes note that a call that was made at that time has confirmed the hold.
func (r *record) confirmed(from time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = max(r.last, from)
}

// ranOut reports whether time has run out under a hold that was to be kept, and says
// when. A lease that states an end far too early has not run out, it is wrong.
func (r *record) ranOut(e *env) (when time.Duration, ok bool) {
	r.see()
	if r.closed != nil && r.closed() >= 0 {
		return 0, false
	}
	now := e.hist.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	// A release that failed may have come too late.
	if r.released >= 0 && !r.unsure || r.lapsing || r.maxHold > 0 {
		return 0, false
	}
	ttl := r.ttl
	if ttl == 0 {
		ttl = e.ttl
	}
	from := max(r.invoked, r.last)
	end := from + backend.ValidFor(ttl)
	switch {
	case r.known:
		end = r.seen
	case r.renews:
		return 0, false // nothing tells when it was renewed last
	}
	return end, end <= now && now-from >= ttl/3
}

// unheard takes note that a release that nothing disturbed had no answer.
func (r *record) unheard(took time.Duration, err error) {
	if noAnswer(err) && took >= leastTimeout {
		r.mu.Lock()
		r.open = true
		r.mu.Unlock()
	}
}

func (r *record) mayBeThere() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// doubt looks for holds of the key that were to be kept and have run out, or that were
// released and nobody knows whether they were. A hold that is
// renewed runs out by the fault of the lock, unless it was held up; any other does so by
// the fault of the case.
func (e *env) doubt(f *failure) {
	for _, r := range e.recordsOf(f.key) {
		when, out := r.ranOut(e)
		switch {
		case r.mayBeThere():
			f.gone = fmt.Sprintf("the release by %s on the key had no answer, so that it may not have been released", r.who)
			return
		case !out:
		case r.renews:
			if f.excuse.from == 0 {
				f.excuse = e.timely()
			}
		default:
			f.gone = fmt.Sprintf("the hold of %s on the key, which it rests on, had run out at %s", r.who, seconds(when))
			return
		}
	}
}

// doubtful says why the failures prove nothing, or nothing if one of them does. The
// first failure on a key counts, and others on it may have followed from it. The mutex
// is held.
func (e *env) doubtful() string {
	var why []string
	seen := map[string]bool{}
	for _, f := range e.failures {
		switch {
		case f.proof:
			return ""
		case seen[f.key]:
		case f.gone != "":
			why = append(why, f.gone)
		default:
			heldUp := e.heldUp(f.excuse.by)
			if waited := e.hist.neverAnswered(); f.excuse.by == anyAnswer && waited >= leastTimeout {
				why = append(why, fmt.Sprintf("a request that nothing disturbed had no answer after %s", waited.Round(time.Millisecond)))
				break
			}
			if f.excuse.from == 0 || f.excuse.from > heldUp {
				return ""
			}
			why = append(why, fmt.Sprintf("this process or a request was held up for %s, and from %s on, with a TTL of %s, that may be the reason",
				heldUp.Round(time.Millisecond), f.excuse.from.Round(time.Millisecond), e.ttl))
		}
		seen[f.key] = true
	}
	return strings.Join(slices.Compact(why), "; ")
}
