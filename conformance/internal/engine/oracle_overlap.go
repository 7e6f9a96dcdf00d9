package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// GrantsOf is how many grants of the key were recorded.
func (e *Env) GrantsOf(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, r := range e.records {
		if r.Key == key {
			n++
		}
	}
	return n
}

// Record is one hold as the oracles see it. Times count from the start of the
// case.
type Record struct {
	Who, Key, Owner string
	Token           uint64
	ttl             time.Duration
	renews          bool          // renewed automatically
	Invoked         time.Duration // when the granting call was made
	Granted         time.Duration // when it returned
	maxHold         time.Duration // zero for none
	closed          func() time.Duration
	Deadline        func() (time.Duration, bool)
	stood           func() time.Duration // when its process was first stopped for long, or -1; nil: never

	mu       sync.Mutex
	released time.Duration // when Release was first called, or -1
	seen     time.Duration // the last deadline that was read
	known    bool
	last     time.Duration // when the last call was made that has confirmed it, or zero
	lapsing  bool          // nothing rests on it any more
	open     bool          // Release had no answer
	answer   releaseAnswer // of the first Release
}

// releaseAnswer is what became of a call of Release.
type releaseAnswer int

const (
	releaseOpen  releaseAnswer = iota
	releaseFreed               // the hold was there to its end
	releaseLate                // the hold may have ended before
)

// see reads the deadline.
func (r *Record) see() {
	d, ok := r.Deadline()
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released < 0 {
		r.seen, r.known = d, true
	}
}

func (e *Env) addRecord(r *Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.records = append(e.records, r)
}

// IsReleased reports whether Release was called.
func (r *Record) IsReleased() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.released >= 0
}

// Releasing takes note that Release is called.
func (r *Record) Releasing(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released < 0 {
		r.released = now
	}
}

// releasedWith takes note of what the first Release has returned, of a lease that had
// ended before the call or had not. A hold that had ended by then is known to have lasted
// no longer than it was confirmed.
func (r *Record) releasedWith(over bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.answer != releaseOpen:
	case over || err != nil:
		r.answer = releaseLate
	default:
		r.answer = releaseFreed
	}
}

// EndedBy makes a call that is to end the hold.
func (r *Record) EndedBy(e *Env, call func() error) error { return r.endedBy(e, false, call) }

func (r *Record) endedBy(e *Env, over bool, call func() error) error {
	first := !r.IsReleased()
	r.Releasing(e.Log.Now())
	err := call()
	if first {
		r.releasedWith(over, err)
	}
	return err
}

// Gone is when the server has certainly ended the hold, if it was never renewed:
// it began before the call returned.
func (r *Record) Gone(e *Env) time.Duration {
	ttl := r.ttl
	if ttl == 0 {
		ttl = e.TTL
	}
	return r.Granted + ttl + e.Claimed.TakeoverLag + ttl/10
}

// End is until when the holder may believe that it holds the key, and why then:
// the earliest of the call of Release or Close, the deadline, the maximum hold
// and the removal by force. It is never later than the truth, so that the
// oracle raises no false alarm: a hold that is renewed and tells no deadline was there
// until its release only if the release says so, and its process did not stand still.
func (r *Record) End(e *Env, removals []time.Duration) (time.Duration, string) {
	r.see()
	r.mu.Lock()
	defer r.mu.Unlock()
	end, why := r.Granted, "its grant"
	switch {
	case r.known:
		end, why = r.seen, "its deadline"
	case r.released >= 0 && r.renews && r.answer == releaseFreed:
		end, why = r.released, "its release"
	case !r.renews:
		ttl := r.ttl
		if ttl == 0 {
			ttl = e.TTL
		}
		end, why = r.Invoked+backend.ValidFor(ttl), "its TTL"
	}
	sooner := func(t time.Duration, reason string) {
		if t < end {
			end, why = t, reason
		}
	}
	if r.released >= 0 {
		sooner(r.released, "its release")
	}
	if r.stood != nil && !r.known && r.renews {
		if t := r.stood(); t >= 0 {
			sooner(t, "the stop of its process")
		}
	}
	if r.closed != nil {
		if t := r.closed(); t >= 0 {
			sooner(t, "the close of its client")
		}
	}
	if r.maxHold > 0 {
		sooner(r.Invoked+r.maxHold, "its maximum hold")
	}
	for _, t := range removals {
		if t >= r.Invoked {
			sooner(t, "its removal by force")
		}
	}
	return end, why
}

// checkOverlap is the oracle of mutual exclusion. A hold lasts from the return
// of the call that granted it to its end; holds of one key may overlap only when
// they name the same owner. It runs at the end of every case.
func (e *Env) checkOverlap() {
	e.mu.Lock()
	byKey := map[string][]*Record{}
	for _, r := range e.records {
		byKey[r.Key] = append(byKey[r.Key], r)
	}
	removed := e.removed
	e.mu.Unlock()
	for key, records := range byKey {
		text, when, sure := e.overlap(records, removed[key])
		switch {
		case text == "":
			continue
		case sure:
			e.mu.Lock()
			e.overlaps = true
			e.mu.Unlock()
			e.ProofAt(when, key, "two leases of one key were valid at the same time: %s", text)
		default:
			e.Fail(Excuse{e.TTL / 4, AnyRequest}, key, "two leases of one key were valid at the same time: %s", text)
		}
		return
	}
}

// overlap describes the last two holds that overlap, and says when the later one
// was granted. It is not sure where the earlier one was renewed and tells no deadline: a
// renewal may have been held up, and the release may not have noticed.
func (e *Env) overlap(records []*Record, removals []time.Duration) (text string, when time.Duration, sure bool) {
	slices.SortFunc(records, func(a, b *Record) int { return int(a.Granted - b.Granted) })
	type span struct {
		*Record
		end time.Duration
		why string
	}
	var active []span
	for _, r := range records {
		active = slices.DeleteFunc(active, func(s span) bool { return s.end <= r.Granted })
		end, why := r.End(e, removals)
		for _, s := range active {
			if s.Owner == "" || s.Owner != r.Owner {
				sure = s.known || !s.renews
				text = fmt.Sprintf("%s was granted it at %s and held it until %s at %s; %s was granted it at %s",
					s.Who, Seconds(s.Granted), s.why, Seconds(s.end), r.Who, Seconds(r.Granted))
				when = r.Granted
			}
		}
		if end > r.Granted {
			active = append(active, span{r, end, why})
		}
	}
	return text, when, sure
}
