package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mortiselock/lock/internal/wait"
)

// The sides of a pair, in the order in which everybody acquires them.
const (
	oldSide = iota
	newSide
)

// pairLease is one hold of a key in both stores of a [Pair].
type pairLease struct {
	p     *Pair
	sides [2]Lease
	token uint64

	ctx  pairContext
	end  context.CancelCauseFunc
	stop [2]func() bool // the looks at the contexts of the sides

	turn    chan struct{} // has room for the one who releases
	settled [2]bool       // who has the turn knows: the side needs no release any more
	passed  [2]time.Time  // when the clock that a side's tokens follow has passed the token
}

// pairPatience is how long a release waits for the slower clock at most.
const pairPatience = 100 * time.Millisecond

func newPairLease(p *Pair, first, second Lease) *pairLease {
	l := &pairLease{
		p: p, sides: [2]Lease{first, second}, token: max(first.Token(), second.Token()),
		turn: make(chan struct{}, 1),
	}
	ctx, end := context.WithCancelCause(context.Background())
	l.ctx, l.end = pairContext{ctx, l}, end
	for i, side := range l.sides {
		// Where a token is no time in microseconds, behind is nothing that can be waited for.
		if behind := l.token - side.Token(); p.sides[i].raiser == nil && behind < uint64(pairPatience.Microseconds()) {
			l.passed[i] = time.Now().Add(time.Duration(behind+1) * time.Microsecond)
		}
		l.stop[i] = context.AfterFunc(side.Context(), func() { l.lost(i, context.Cause(side.Context())) })
	}
	return l
}

// Key is the key that was acquired.
func (l *pairLease) Key() string { return l.sides[oldSide].Key() }

// Token is the larger one.
func (l *pairLease) Token() uint64 { return l.token }

// Context ends with the hold in either store.
func (l *pairLease) Context() context.Context { return l.ctx }

// Deadline is the earlier one, and unknown when one is.
func (l *pairLease) Deadline() (time.Time, bool) {
	one, ok := l.sides[oldSide].Deadline()
	other, too := l.sides[newSide].Deadline()
	switch {
	case !ok || !too:
		return time.Time{}, false
	case other.Before(one):
		return other, true
	}
	return one, true
}

// Format prints what everybody may know, with every verb in the same way.
func (l *pairLease) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "lease of %q with the token %d in two stores", l.Key(), l.token)
}

// LogValue implements slog.LogValuer.
func (l *pairLease) LogValue() slog.Value {
	return slog.GroupValue(slog.String("key", l.Key()), slog.Uint64("token", l.token))
}

// look ends the context when one of the sides has ended. It does no I/O.
func (l *pairLease) look() {
	for i, side := range l.sides {
		if side.Context().Err() != nil {
			l.end(l.p.fromSide(i, context.Cause(side.Context())))
		}
	}
}

// lost ends the hold in the other store, too, when it has ended in one: nobody holds the
// key any more, and nobody may have to wait for the caller's Release.
func (l *pairLease) lost(side int, cause error) {
	l.end(l.p.fromSide(side, cause))
	l.p.forget(l)
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	_ = l.releaseSides(context.Background())
}

// endUnasked ends the context, and what would end it when a side ends.
func (l *pairLease) endUnasked(cause error) {
	l.end(cause)
	for _, stop := range l.stop {
		stop()
	}
}

// ended returns why the hold is over, or nil while it goes on.
func (l *pairLease) ended() error {
	if l.ctx.Err() == nil {
		return nil
	}
	return &pairEndedError{l.Key(), context.Cause(l.ctx)}
}

// pairEndedError says that an operation came too late because the hold had ended.
type pairEndedError struct {
	key   string
	cause error
}

func (e *pairEndedError) Error() string {
	return fmt.Sprintf("lock: %q is not held any more: %v", e.key, e.cause)
}
func (e *pairEndedError) Is(target error) bool { return target == ErrNotHeld }
func (e *pairEndedError) Unwrap() error        { return e.cause }

// Renew renews in both stores at the same time.
func (l *pairLease) Renew(ctx context.Context) error {
	if err := l.ended(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	errs := l.p.eachSide(func(i int) error { return l.sides[i].Renew(ctx) })
	for i, err := range errs {
		if errors.Is(err, ErrNotHeld) && l.ctx.Err() == nil {
			// A lease that does not tell of its loss by its context.
			cause := fmt.Errorf("%w: %w", ErrLost, errors.Unwrap(err))
			l.end(l.p.fromSide(i, cause))
			go l.lost(i, cause)
		}
	}
	if err := l.ended(); err != nil {
		return err
	}
	return joined(errs)
}

// Release ends the context, the hold in the new store, and that in the old one.
func (l *pairLease) Release(ctx context.Context) error {
	l.look()
	l.endUnasked(ErrReleased)
	l.p.forget(l)
	ended := l.ended()
	lost := !errors.Is(ended, ErrReleased)
	select {
	case l.turn <- struct{}{}:
	default:
		select {
		case l.turn <- struct{}{}:
		case <-ctx.Done():
			if lost {
				return ended
			}
			return fmt.Errorf("lock: releasing %q: another Release is still waiting for the servers: %w: %w", l.Key(), ErrOutcomeUnknown, ctx.Err())
		}
	}
	defer func() { <-l.turn }()
	if l.settled == [2]bool{true, true} {
		return ended
	}
	errs := l.releaseSides(ctx)
	if !lost {
		return joined(errs)
	}
	for i, err := range errs {
		if !l.settled[i] {
			ended = errors.Join(ended, err)
		}
	}
	return ended
}

// releaseSides releases what is not settled yet, the new store first: whoever is granted
// the old one then finds the new one free. The caller has the turn.
func (l *pairLease) releaseSides(ctx context.Context) (errs [2]error) {
	for _, i := range []int{newSide, oldSide} {
		if l.settled[i] {
			continue
		}
		time.Sleep(time.Until(l.passed[i])) // whatever ctx says: it is short, and mostly over
		err := l.sides[i].Release(ctx)
		l.settled[i] = err == nil || errors.Is(err, ErrNotHeld) && !errors.Is(err, ErrOutcomeUnknown)
		errs[i] = l.p.fromSide(i, err)
	}
	return errs
}

// pairContext ends with the hold. Its Err looks at both sides, and they at the clock.
type pairContext struct {
	context.Context
	l *pairLease
}

func (c pairContext) Err() error {
	if c.Context.Err() == nil {
		c.l.look()
	}
	return c.Context.Err()
}

// Format is that of the lease.
func (c pairContext) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "context of the %v", c.l) }

// String is for the names of contexts that are made from it.
func (c pairContext) String() string { return fmt.Sprintf("%v", c) }

// keeper renews a lease that does not renew itself, while its caller cannot do it yet. The
// zero value does nothing.
type keeper struct {
	ttl  time.Duration // what the lease had left when it came
	end  context.CancelFunc
	done sync.WaitGroup
}

// keep begins to renew.
func (k *keeper) keep(lease Lease) {
	until, ok := lease.Deadline()
	if !ok {
		return
	}
	k.ttl = time.Until(until)
	ctx, end := context.WithCancel(context.Background())
	k.end = end
	k.done.Go(func() {
		t := time.NewTicker(max(k.ttl/3, time.Millisecond))
		defer t.Stop()
		for {
			select {
			case <-t.C:
				_ = lease.Renew(ctx) // the next one may work, or the lease ends and tells
			case <-lease.Context().Done():
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

// stop ends the renewals.
func (k *keeper) stop() {
	if k.end != nil {
		k.end()
		k.done.Wait()
	}
}

// ttlOf is the TTL of a lease, or asked where that can't be known.
func ttlOf(lease Lease, asked time.Duration) time.Duration {
	if own, ok := lease.(*wait.Lease); ok {
		return own.Hold().TTL
	}
	return asked
}

// topUp gives the caller about the whole TTL, unless little of it has passed. Where it fails,
// [stillOfUse] tells whether that matters.
func topUp(ctx context.Context, lease Lease, asked time.Duration) {
	ttl := ttlOf(lease, asked)
	if until, ok := lease.Deadline(); !ok || time.Until(until) > ttl*9/10 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, max(ttl/3, time.Millisecond))
	defer cancel()
	_ = lease.Renew(ctx)
}

// stillOfUse refuses what each store refuses by itself: a lease of which little is left. A
// maximum hold may be shorter.
func stillOfUse(lease Lease, asked, maxHold time.Duration) error {
	ttl := ttlOf(lease, asked)
	if maxHold > 0 && maxHold < ttl {
		return nil
	}
	if until, ok := lease.Deadline(); ok && time.Until(until) < ttl/3 {
		return fmt.Errorf("%w: less than a third of the TTL of %s was left when both stores had granted %q; a server is slow or the TTL too short", ErrUnavailable, ttl, lease.Key())
	}
	return nil
}
