package engine

import (
	"fmt"
	"sync"
	"time"
)

// FencedRegister is the resource of the fencing oracle: it accepts a write when
// its token is at least as large as the largest that it has accepted, and
// remembers who wrote. Tokens that don't grow from grant to grant show in it: it
// takes a write of an older holder after one of a newer, or refuses the newest.
type FencedRegister struct {
	mu      sync.Mutex
	highest uint64
	writes  []FencedWrite
	changed chan struct{} // closed by the next write
}

// NewFencedRegister makes a register that nobody has written.
func NewFencedRegister() *FencedRegister { return &FencedRegister{changed: make(chan struct{})} }

// FencedWrite is a write that arrived.
type FencedWrite struct {
	Who      string
	Token    uint64
	Granted  time.Duration // when the call that granted the writer's lease returned
	Sure     bool          // the lease was alive then, so that later grants are newer
	At       time.Duration // when the write arrived
	accepted bool
}

// Write decides about a write.
func (r *FencedRegister) Write(w FencedWrite) (accepted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.accepted = w.Token >= r.highest; w.accepted {
		r.highest = w.Token
	}
	r.writes = append(r.writes, w)
	close(r.changed)
	r.changed = make(chan struct{})
	return w.accepted
}

// Newer reports whether a holder that was granted the key after the given time
// has written. The channel is closed by the next write.
func (r *FencedRegister) Newer(granted time.Duration) (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.writes {
		if w.Granted > granted {
			return true, nil
		}
	}
	return false, r.changed
}

// Counts is how many writes were accepted, and how many refused.
func (r *FencedRegister) Counts() (accepted, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.writes {
		if w.accepted {
			accepted++
		} else {
			refused++
		}
	}
	return accepted, refused
}

// Verdict describes the first write that was decided wrongly, and says when it
// arrived.
func (r *FencedRegister) Verdict() (string, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var newest *FencedWrite // of the accepted writes
	for i := range r.writes {
		w := &r.writes[i]
		switch {
		case !w.Sure:
			continue
		case newest == nil:
		case w.accepted && w.Granted < newest.Granted:
			return fmt.Sprintf("an older holder's write was accepted after a newer one's: %s, granted the key at %s with token %d, wrote at %s; but %s, granted it later at %s with token %d, had written at %s",
				w.Who, Seconds(w.Granted), w.Token, Seconds(w.At), newest.Who, Seconds(newest.Granted), newest.Token, Seconds(newest.At)), w.At
		case !w.accepted && w.Granted > newest.Granted:
			return fmt.Sprintf("the newest holder's write was refused: %s, granted the key at %s with token %d, wrote at %s; but %s, granted it earlier at %s, had written with the larger token %d",
				w.Who, Seconds(w.Granted), w.Token, Seconds(w.At), newest.Who, Seconds(newest.Granted), newest.Token), w.At
		}
		if w.accepted {
			newest = w
		}
	}
	return "", 0
}
