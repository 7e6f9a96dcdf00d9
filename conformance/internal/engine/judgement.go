package engine

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

// TooSlowf ends a case whose time has run out for no fault of the lock.
func (e *Env) TooSlowf(key, format string, args ...any) {
	e.Log.Note("suite", key, "too slow")
	panic(inconclusive{fmt.Sprintf(format, args...)})
}

const (
	mostAttempts = 4
	fewAttempts  = 2 // once a rule has failed for sure: the lock has to be mended first
	// A TTL is chosen so that a usual request takes no more than a tenth of it, and after
	// an attempt that could not be judged, what held it up no more than a thirtieth.
	requestsPerTTL = 10
	delaysPerTTL   = 30
	longestRepeat  = 12 * time.Second // or eight times the TTL of the run
)

// leastTimeout is how long a call takes at least that gives up for want of an answer. One
// that says so sooner has not waited for any. It does not grow with the TTL, since the
// time limits of a client need not.
const leastTimeout = 15 * time.Millisecond

// usualTimeout is how long a client may wait for the answer to one request, before it says
// that the server does not answer. Such limits do not grow with the TTL.
const usualTimeout = 150 * time.Millisecond

// Timely is the excuse of a thing that takes a part of a TTL. With the longest TTL that is
// tried there is time for more: a lock whose own requests are so slow that it loses what
// it renews is wrong.
func (e *Env) Timely() Excuse { return TimelyFor(e.TTL) }

// TimelyFor is Timely for a lease with a TTL that the case has chosen by itself.
func TimelyFor(ttl time.Duration) Excuse {
	from := ttl / 20
	if ttl >= longestRepeat {
		from = ttl / 4
	}
	return Excuse{max(from, stallNoted), AnyRequest}
}

// patient is the excuse of what a control timer with slack has waited for.
func (e *Env) patient() Excuse { return Excuse{e.Slack() / 5, AnyRequest} }

// Excuse is what a late thing may be the fault of.
type Excuse struct {
	From time.Duration // for how long it must have been held up; zero: nothing excuses it
	By   HoldUp
}

// HoldUp is what may hold a thing up.
type HoldUp int

const (
	allRequests HoldUp = iota // requests as a rule, where the best of several is judged; or this process
	AnyRequest                // one request, or this process for once
	anyAnswer                 // the same, or a request that was never answered
	ThisProcess               // nothing else, where the lock has no request to wait for, or is to judge it itself
)

// heldUp is the longest that this process stood still, or that a request of the case or of
// the bystander took. The faults that are put into requests don't count, the rest of their time does.
func (e *Env) heldUp(by HoldUp) time.Duration {
	stood := e.stalls.since(e.Log.Base)
	switch by {
	case AnyRequest:
		worst := max(stood, e.Log.slowest(), e.bystander.since(e.Log.Base))
		if e.TTL < longestRepeat { // a renewal that hangs however much time it is given is the lock's fault
			worst = max(worst, e.Log.renewalFailed())
		}
		return worst
	case anyAnswer:
		return max(stood, e.Log.slowest(), e.Log.neverAnswered(), e.bystander.since(e.Log.Base))
	case allRequests:
		return max(stood, e.pace.of(0.5))
	}
	return stood
}

// ofLate is how far back is looked for what holds cases up now.
const ofLate = 2 * time.Second

// heldUpOfLate is the longest that this process stood still, or the bystander's request took,
// of late.
func (s *Settings) heldUpOfLate() time.Duration {
	from := time.Now().Add(-ofLate)
	return max(s.stalls.since(from), s.bystander.since(from))
}

// attempts is how often a case is tried that stays inconclusive. What is not claimed is
// tried once.
func (s *Settings) attempts() int {
	if s.red.Load() {
		return fewAttempts
	}
	return mostAttempts
}

// nextTTL is the TTL of an attempt after one with the TTL prev that was held up for so
// long: a multiple of that of the run, and that itself for the first one on a fast server.
func (s *Settings) nextTTL(prev, heldUp time.Duration) time.Duration {
	ttl := requestsPerTTL * s.pace.usual()
	if prev > 0 {
		ttl = max(ttl, 2*prev, delaysPerTTL*heldUp)
	}
	ttl = min(ttl, max(8*s.TTL, longestRepeat))
	return s.Fit((max(ttl, 1) + s.TTL - 1) / s.TTL * s.TTL)
}

// swift is how long a request takes, at most, for which the limits and rounds of the rules
// are meant.
const swift = 5 * time.Millisecond

// lagsPerCase is how often a case may wait until an abandoned hold is free.
const lagsPerCase = 8

// limits are when a case is given up as hanging: after the first if nothing moves, and
// after the second in any case. Both follow from what requests take.
func (s *Settings) limits(r *Rule, ttl time.Duration) (still, most time.Duration) {
	limit := r.limit(ttl) + lagsPerCase*s.Claimed.TakeoverLag
	usual := s.pace.usual()
	still = limit + min(limit*(usual/time.Millisecond)/50, 3*limit)
	return still, max(still, limit*(usual/time.Millisecond)/(swift/time.Millisecond))
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

// fewest is how many requests tell how long they take.
const fewest = 6

// known reports whether it is known how long requests take.
func (p *pace) known() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n >= fewest
}

// of is what the given part of the last requests has not exceeded, and zero while few are
// known.
func (p *pace) of(part float64) time.Duration {
	p.mu.Lock()
	known := slices.Clone(p.last[:min(p.n, len(p.last))])
	p.mu.Unlock()
	if len(known) < fewest {
		return 0
	}
	slices.Sort(known)
	return known[int(float64(len(known))*part)]
}

// Lapses takes note that the hold is left to run out, or may be ended by others. No
// expectation rests on it from now on.
func (r *Record) Lapses() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lapsing = true
}

// lapsing is lapses for every hold of the key.
func (e *Env) lapsing(key string) {
	for _, r := range e.recordsOf(key) {
		r.Lapses()
	}
}

func (e *Env) recordsOf(key string) []*Record {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*Record
	for _, r := range e.records {
		if r.Key == key {
			out = append(out, r)
		}
	}
	return out
}

// confirmed takes note that a call that was made at that time has confirmed the hold.
func (r *Record) confirmed(from time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = max(r.last, from)
}

// unrenewed reports whether leases are declared not to be renewed.
func (e *Env) unrenewed() bool { return e.Declared("RenewKeeps", "renewal") }

// ranOut reports whether time has run out under a hold that was to be kept, and says
// when. A lease that states an end far too early has not run out, it is wrong.
func (r *Record) ranOut(e *Env) (when time.Duration, ok bool) {
	r.see()
	if r.closed != nil && r.closed() >= 0 {
		return 0, false
	}
	now := e.Log.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	// A release that failed may have come too late.
	if r.released >= 0 && r.answer != releaseLate || r.lapsing {
		return 0, false
	}
	ttl := r.ttl
	if ttl == 0 {
		ttl = e.TTL
	}
	from := max(r.Invoked, r.last)
	end := from + backend.ValidFor(ttl)
	switch {
	case r.known:
		end = r.seen
	case r.renews && !e.unrenewed():
		return 0, false // nothing tells when it was renewed last
	}
	if r.maxHold > 0 && end >= r.Invoked+backend.ValidFor(r.maxHold) {
		return 0, false // that has ended it, as it was to do
	}
	return end, end <= now && now-from >= ttl/3
}

// unheard takes note that a release that nothing disturbed had no answer.
func (r *Record) unheard(took time.Duration, err error) {
	if noAnswer(err) && took >= leastTimeout {
		r.mu.Lock()
		r.open = true
		r.mu.Unlock()
	}
}

func (r *Record) mayBeThere() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// doubt looks for holds of the key that were to be kept and have run out, or that were
// released and nobody knows whether they were. A hold that is
// renewed runs out by the fault of the lock, unless it was held up; any other does so by
// the fault of the case.
func (e *Env) doubt(f *failure) {
	for _, r := range e.recordsOf(f.key) {
		when, out := r.ranOut(e)
		switch {
		case r.mayBeThere():
			f.gone = fmt.Sprintf("the release by %s on the key had no answer, so that it may not have been released", r.Who)
			return
		case !out:
		case r.renews && e.unrenewed():
			f.gone = fmt.Sprintf("the hold of %s on the key, which it rests on, had run out at %s, and leases are declared not to be renewed", r.Who, Seconds(when))
			f.unkept = true
			return
		case r.renews:
			if f.excuse.From == 0 {
				f.excuse = e.Timely()
			}
		default:
			f.gone = fmt.Sprintf("the hold of %s on the key, which it rests on, had run out at %s", r.Who, Seconds(when))
			return
		}
	}
}

// doubtful says why the failures prove nothing, or nothing if one of them does. The
// first failure on a key counts, and others on it may have followed from it. The mutex
// is held.
func (e *Env) doubtful() string {
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
			heldUp := e.heldUp(f.excuse.By)
			if waited := e.Log.neverAnswered(); f.excuse.By == anyAnswer && waited >= leastTimeout {
				why = append(why, fmt.Sprintf("a request that nothing disturbed had no answer after %s", waited.Round(time.Millisecond)))
				break
			}
			if f.excuse.From == 0 || f.excuse.From > heldUp {
				return ""
			}
			why = append(why, fmt.Sprintf("this process or a request was held up for %s, and from %s on, with a TTL of %s, that may be the reason",
				heldUp.Round(time.Millisecond), f.excuse.From.Round(time.Millisecond), e.TTL))
		}
		seen[f.key] = true
	}
	return strings.Join(slices.Compact(why), "; ")
}
