package conformance

import (
	"fmt"
	"sync"
	"time"
)

// fencedRegister is the resource of the fencing oracle: it accepts a write when
// its token is at least as large as the largest that it has accepted, and
// remembers who wrote. Tokens that don't grow from grant to grant show in it: it
// takes a write of an older holder after one of a newer, or refuses the newest.
type fencedRegister struct {
	mu      sync.Mutex
	highest uint64
	writes  []fencedWrite
	changed chan struct{} // closed by the next write
}

func newFencedRegister() *fencedRegister { return &fencedRegister{changed: make(chan struct{})} }

// fencedWrite is a write that arrived.
type fencedWrite struct {
	who      string
	token    uint64
	granted  time.Duration // when the call that granted the writer's lease returned
	sure     bool          // the lease was alive then, so that later grants are newer
	at       time.Duration // when the write arrived
	accepted bool
}

// write decides about a write.
func (r *fencedRegister) write(w fencedWrite) (accepted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.accepted = w.token >= r.highest; w.accepted {
		r.highest = w.token
	}
	r.writes = append(r.writes, w)
	close(r.changed)
	r.changed = make(chan struct{})
	return w.accepted
}

// newer reports whether a holder that was granted the key after the given time
// has written. The channel is closed by the next write.
func (r *fencedRegister) newer(granted time.Duration) (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.writes {
		if w.granted > granted {
			return true, nil
		}
	}
	return false, r.changed
}

func (r *fencedRegister) counts() (accepted, refused int) {
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

// verdict describes the first write that was decided wrongly, and says when it
// arrived.
func (r *fencedRegister) verdict() (string, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var newest *fencedWrite // of the accepted writes
	for i := range r.writes {
		w := &r.writes[i]
		switch {
		case !w.sure:
			continue
		case newest == nil:
		case w.accepted && w.granted < newest.granted:
			return fmt.Sprintf("an older holder's write was accepted after a newer one's: %s, granted the key at %s with token %d, wrote at %s; but %s, granted it later at %s with token %d, had written at %s",
				w.who, seconds(w.granted), w.token, seconds(w.at), newest.who, seconds(newest.granted), newest.token, seconds(newest.at)), w.at
		case !w.accepted && w.granted > newest.granted:
			return fmt.Sprintf("the newest holder's write was refused: %s, granted the key at %s with token %d, wrote at %s; but %s, granted it earlier at %s, had written with the larger token %d",
				w.who, seconds(w.granted), w.token, seconds(w.at), newest.who, seconds(newest.granted), newest.token), w.at
		}
		if w.accepted {
			newest = w
		}
	}
	return "", 0
}
