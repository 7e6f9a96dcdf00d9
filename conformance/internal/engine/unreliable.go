package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

// A server that fails now and then makes a healthy lock fail: a request of a case has an error,
// or one that a Locker makes by itself, which shows as something that came late. So before a
// lock is accused, a client that nothing disturbs takes and releases a key that nobody else
// uses. Where that fails as well, with an error that says that the server failed, the case
// tells nothing of the lock, unless it has a proof.
//
// A server may also be away for a while, as when another member takes over. Then the client on
// its own gets no answer either, and asks until it has one. Every case that ran meanwhile, and
// was broken, tells nothing. A lock that answers nobody for long does not work.
//
// A lock of which every fourth request fails is not kept from its work now and then: it does
// not work. Those that fail late, or very few of many, are what a machine was too slow for.

// reliability is what is known of the requests of clients on their own, over the run.
type reliability struct {
	turn   chan struct{} // a mutex would stop virtual time
	looks  int
	tried  int
	failed int
	last   error // that was no answer

	away      []stall
	gone      bool // it did not come back
	suspected int
}

const (
	manyLone  = 2000            // requests tell whether one of some hundred fails
	fewFailed = 3               // of them tell that some do,
	fewLone   = 40              // and so many requests that not each of them does
	loneLimit = 2 * time.Second // or what can be done in that time,
	seldom    = 340             // of so many requests not even one fails
	mostLooks = 3               // so many times,
	mostLone  = 8               // by so many clients at a time where the server is slow, or nobody knows

	longestAway   = 10 * time.Second
	awayPause     = 100 * time.Millisecond
	mostSuspected = 100
)

// unreliable says why the server could not be relied on since then, or nothing.
func (s *Settings) unreliable(ctx context.Context, since time.Time) string {
	r := &s.lone
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if d := s.wasAway(ctx, since); d > 0 {
		return fmt.Sprintf("the server was away: for %s it did not answer a client that nothing disturbed, for keys that nobody else used", d.Round(time.Millisecond))
	}
	if r.failed == 0 && r.tried < manyLone && r.looks < mostLooks {
		r.looks++
		s.lookAlone(ctx, r)
	}
	if r.failed == 0 || seldom*r.failed < r.tried || 4*r.failed > r.tried {
		return ""
	}
	return fmt.Sprintf("the server fails now and then: %d of %d requests of a client that nothing disturbed, for keys that nobody else used, the last with %s", r.failed, r.tried, Outcome(r.last))
}

// wasAway is for how long the server was away since then, or zero. Where it is away now, that is
// waited for.
func (s *Settings) wasAway(ctx context.Context, since time.Time) time.Duration {
	s.lookAway(ctx)
	for _, a := range s.lone.away {
		if a.at.After(since) {
			return a.length
		}
	}
	return 0
}

// suspect has a client on its own ask, now that a request had no answer that nothing disturbed.
func (s *Settings) suspect() {
	r := &s.lone
	select {
	case r.turn <- struct{}{}:
	default:
		return // somebody asks
	}
	if r.suspected++; r.suspected > mostSuspected {
		<-r.turn
		return
	}
	go func() {
		defer func() { <-r.turn }()
		s.lookAway(context.Background())
	}()
}

// lookAway looks whether the server is away, and when it comes back. It has the turn.
func (s *Settings) lookAway(ctx context.Context) {
	r := &s.lone
	if r.gone {
		return
	}
	ctx = context.WithoutCancel(ctx)
	begun, asked := time.Now(), 0
	for ; !s.answersOne(ctx, fmt.Sprintf("%slone/away/%d/%d", s.KeySpace, begun.UnixNano(), asked)); asked++ {
		if time.Since(begun) > longestAway {
			r.gone = true
			return
		}
		if asked >= fewFailed {
			time.Sleep(awayPause)
		}
	}
	if asked >= fewFailed { // else it is there, whatever becomes of some requests
		now := time.Now()
		r.away = append(r.away, stall{now, now.Sub(begun)})
	}
}

// askNoMore waits until nobody asks whether the server is away, and keeps it so.
func (s *Settings) askNoMore() {
	select {
	case s.lone.turn <- struct{}{}:
	case <-time.After(closeLimit):
	}
}

// answersOne has a client of its own make a request, and reports whether it got an answer. What
// takes long, or panics, is for others to judge.
func (s *Settings) answersOne(ctx context.Context, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, loneLimit)
	defer cancel()
	answered := make(chan bool, 1)
	s.apart.Go(func() {
		defer func() {
			if recover() != nil {
				answered <- true
			}
		}()
		err := s.askOne(ctx, key)
		answered <- !noAnswer(untyped(err)) || tookTooLong(err)
	})
	select {
	case is := <-answered:
		return is
	case <-ctx.Done():
		return true
	}
}

func (s *Settings) askOne(ctx context.Context, key string) error {
	if s.OpenBackend == nil {
		l, err := s.OpenLocker(ctx)
		if err != nil {
			return err
		}
		defer s.closeApart(l)
		lease, err := l.TryAcquire(ctx, key)
		if err == nil && lease != nil {
			_ = lease.Release(ctx)
		}
		return err
	}
	b, err := s.openBackend(ctx)
	if err != nil {
		return err
	}
	defer s.closeApart(b)
	req := backend.Request{Key: key, ID: backend.NewID(), TTL: s.TTL}
	_, err = b.Try(ctx, req)
	_ = b.Release(ctx, backend.HoldOf(req))
	return err
}

func (s *Settings) lookAlone(ctx context.Context, r *reliability) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loneLimit)
	defer cancel()
	answers := make(chan error)
	var clients sync.WaitGroup
	many := min(max(s.pace.of(0.5)/swift, 1), mostLone)
	if !s.pace.known() {
		many = mostLone
	}
	for n := range many {
		key := fmt.Sprintf("%slone/%d/%d/", s.KeySpace, r.looks, n)
		clients.Go(func() {
			defer func() { _ = recover() }() // the rules tell of it
			s.lonely(ctx, key, func(err error) {
				if ctx.Err() == nil { // else it may be the end of the context that broke it off
					select {
					case answers <- err:
					case <-ctx.Done():
					}
				}
			})
		})
	}
	s.apart.Go(func() { clients.Wait(); close(answers) })
	for {
		select {
		case err, more := <-answers:
			if !more {
				return
			}
			if r.tried++; noAnswer(untyped(err)) && !tookTooLong(err) {
				r.failed++
				r.last = err
			}
			if r.failed >= fewFailed && r.tried >= fewLone {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// tookTooLong reports an error of a request whose time was up, which shows by its duration
// what it is: the machine or the server was slow.
func tookTooLong(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// lonely makes the requests, and tells how each was answered.
func (s *Settings) lonely(ctx context.Context, stem string, tell func(error)) {
	key := func(n int) string { return fmt.Sprintf("%s%d", stem, n) }
	if s.OpenBackend == nil {
		l, err := s.OpenLocker(ctx)
		if err != nil {
			return
		}
		defer s.closeApart(l)
		for n := 0; n < manyLone && ctx.Err() == nil; n += 2 {
			asked := time.Now()
			lease, err := l.TryAcquire(ctx, key(n))
			if err != nil && time.Since(asked) > s.TTL/4 {
				continue
			}
			if tell(err); err == nil && lease != nil {
				tell(lease.Release(ctx))
			}
		}
		return
	}
	b, err := s.openBackend(ctx)
	if err != nil {
		return
	}
	defer s.closeApart(b)
	for n := 0; n < manyLone && ctx.Err() == nil; n += 2 {
		req := backend.Request{Key: key(n), ID: backend.NewID(), TTL: s.TTL}
		_, err := b.Try(ctx, req)
		tell(err)
		tell(b.Release(ctx, backend.HoldOf(req)))
	}
}
