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

	mu       sync.Mutex
	released time.Duration // when Release was first called, or -1
	seen     time.Duration // the last deadline that was read
	known    bool
	last     time.Duration // when the last call was made that has confirmed it, or zero
	lapsing  bool          // nothing rests on it any more
	open     bool          // Release had no answer
	unsure   bool          // Release has failed, so that it may have ended before
}

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

// releasedWith takes note of what Release has returned. A hold that had ended by then
// is known to have lasted no longer than it was confirmed.
func (r *Record) releasedWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure = r.unsure || err != nil
}

// EndedBy makes a call that is to end the hold.
func (r *Record) EndedBy(e *Env, call func() error) error {
	first := !r.IsReleased()
	r.Releasing(e.Log.Now())
	err := call()
	if first {
		r.releasedWith(err)
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
// oracle raises no false alarm.
func (r *Record) End(e *Env, removals []time.Duration) (time.Duration, string) {
	r.see()
	r.mu.Lock()
	defer r.mu.Unlock()
	end, why := r.Granted, "its grant"
	switch {
	case r.known:
		end, why = r.seen, "its deadline"
	case r.released >= 0 && r.renews && !r.unsure:
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
		if text, when := e.overlap(records, removed[key]); text != "" {
			e.ProofAt(when, key, "two leases of one key were valid at the same time: %s", text)
			return
		}
	}
}

// overlap describes the last two holds that overlap, and says when the later one
// was granted.
func (e *Env) overlap(records []*Record, removals []time.Duration) (text string, when time.Duration) {
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
				text = fmt.Sprintf("%s was granted it at %s and held it until %s at %s; %s was granted it at %s",
					s.Who, Seconds(s.Granted), s.why, Seconds(s.end), r.Who, Seconds(r.Granted))
				when = r.Granted
			}
		}
		if end > r.Granted {
			active = append(active, span{r, end, why})
		}
	}
	return text, when
}
