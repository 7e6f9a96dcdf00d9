package call

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/schedule"
)

// CleanUp is a release that the server still has to confirm, after a lost hold,
// an acquisition of unknown outcome, or a release without an answer. It is
// repeated, detached from every caller's context, until the server confirms it or
// the TTL has passed and the server has ended the hold by itself. Where only the end
// of a session that others share would end the hold, it is repeated until the
// server confirms it or the Locker closes.
//
// A request without an answer may reach the server after its clean-up, and take the key for
// a TTL. So where the server had nothing to end, it is asked again a few times in that
// TTL. Nobody waits for these, Close included.
type CleanUp struct {
	s       *Server
	key     string
	send    func(ctx context.Context) error
	late    func(err error) bool // given how the server confirmed: a request may still arrive; nil: none can
	ttl     time.Duration
	look    time.Duration // until the server is asked again, once it has confirmed
	until   backend.Instant
	backoff time.Duration
	first   chan struct{} // closed after the first attempt
	once    sync.Once     // closes it
	at      int32         // the place in the scheduler
}

// cleanUpPatience is how long a call whose context has ended waits for the first
// attempt to clean up after it, so that normally nothing is left when it returns.
const cleanUpPatience = 50 * time.Millisecond

// A confirmed clean-up looks again after this part of the TTL, or this time if it is shorter,
// and then after pauses that double up to half the TTL.
const (
	firstLookPart = 16
	firstLook     = 250 * time.Millisecond
)

// CleanUp begins a clean-up. After Close it returns nil.
func (s *Server) CleanUp(key string, ttl time.Duration, late func(error) bool, send func(ctx context.Context) error) *CleanUp {
	until := s.Clock.Now().Add(ttl)
	if s.EndsWithSession {
		until = schedule.Never
	}
	cl := &CleanUp{s: s, key: key, send: send, late: late, ttl: ttl, until: until, backoff: 20 * time.Millisecond, first: make(chan struct{})}
	s.Sched.Lock()
	stopped := s.Sched.Stopped()
	if !stopped {
		s.Calls.Follow()
	}
	s.Sched.Unlock()
	if stopped {
		return nil
	}
	cl.run(cl.attempt)
	return cl
}

// GiveBack ends in the background what the server has granted.
func (s *Server) GiveBack(hold backend.Hold) {
	s.CleanUp(hold.Key, hold.TTL, nil, func(ctx context.Context) error { return s.Backend.Release(ctx, hold) })
}

// Undo gives back in the background what a request may have been granted, unless
// only the flight is in doubt and it has never left.
func (s *Server) Undo(req backend.Request, only *Flight) *CleanUp {
	late := func(confirmed error) bool {
		// What was ended is what was in doubt, if that was one request.
		return only.mayArrive() && (only == nil || errors.Is(confirmed, backend.ErrNotHeld))
	}
	return s.CleanUp(req.Key, req.TTL, late, func(ctx context.Context) error {
		if only.neverLeft(ctx) {
			return nil
		}
		return s.Backend.Release(ctx, backend.HoldOf(req))
	})
}

// Await waits a moment for the first attempt.
func (cl *CleanUp) Await() {
	if cl == nil {
		return
	}
	patience := time.NewTimer(cleanUpPatience)
	defer patience.Stop()
	select {
	case <-cl.first:
	case <-patience.C:
	}
}

// Place implements schedule.Entry.
func (cl *CleanUp) Place() *int32 { return &cl.at }

// Due implements schedule.Entry.
func (cl *CleanUp) Due(now backend.Instant) (backend.Instant, func()) {
	if cl.look > 0 {
		cl.s.Calls.Follow()
	} else if now >= cl.until {
		return schedule.Never, func() { cl.run(cl.giveUp) }
	}
	return schedule.Never, func() { cl.run(cl.attempt) }
}

func (cl *CleanUp) run(f func()) {
	cl.s.cleaners.Run(cl.s.Partition(cl.key), Patience, f)
}

func (cl *CleanUp) attempt() {
	s := cl.s
	ctx, cancel := context.WithTimeout(s.Calls.Life, min(Limit, max(cl.until.Sub(s.Clock.Now()), time.Millisecond)))
	defer cancel()
	_, err := Bounded(ctx, s.Calls, nil, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, cl.send(ctx) })
	cl.once.Do(func() { close(cl.first) })
	confirmed := err == nil || errors.Is(err, backend.ErrNotHeld) || errors.Is(err, backend.ErrUnsupported)
	again := cl.look > 0 || confirmed && cl.late != nil && cl.late(err)
	if !confirmed && !again {
		s.Log.Debug("lock clean-up not confirmed yet", "key", cl.key, "error", err)
	}
	s.Sched.Lock()
	defer s.Sched.Unlock()
	switch {
	case again:
		cl.lookLater()
		s.Calls.Done()
	case confirmed || s.Sched.Stopped():
		s.Calls.Done()
	default:
		cl.backoff = min(2*cl.backoff, time.Second)
		s.Sched.Set(cl, s.Clock.Now().Add(schedule.Spread(cl.backoff)))
	}
}

// lookLater has the server asked again, unless the TTL is about to be over. The
// scheduler's mutex is held.
func (cl *CleanUp) lookLater() {
	if cl.look *= 2; cl.look == 0 {
		cl.look = max(min(firstLook, cl.ttl/firstLookPart), time.Millisecond)
	}
	if cl.look <= cl.ttl/2 {
		cl.s.Sched.Set(cl, cl.s.Clock.Now().Add(cl.look))
	}
}

func (cl *CleanUp) giveUp() {
	cl.s.Log.Warn("lock clean-up was not confirmed; the hold has ended by its TTL", "key", cl.key)
	cl.s.Calls.Done()
}
