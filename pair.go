package lock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
)

// Pair is the [Locker] on two stores, which [Both] returns. It is safe for concurrent use.
type Pair struct {
	sides  [2]side
	claims backend.Guarantees
	// own makes explicit owners those of this Locker, where one store counts the holds of
	// an owner in the Locker. The other store may not let in two Lockers at a time with
	// one token.
	own    string
	log    *slog.Logger
	warned atomic.Bool // of tokens that will not rise
	apart  atomic.Bool // the stores are known to be two

	mu     sync.Mutex
	closed bool
	leases map[*pairLease]struct{} // that have not ended

	gone     chan struct{} // closed when Close has ended
	closeErr error
}

var _ Locker = (*Pair)(nil)

// side is one of the two stores.
type side struct {
	locker Locker
	called string // "the old store (redis)"
	// claims are nil where the Locker does not say what it promises.
	claims *backend.Guarantees
	// raiser is nil where the tokens are no revisions: those follow a clock, and raising
	// them is more than one write.
	raiser backend.FloorRaiser
}

// Both returns a Locker whose leases are held in two stores, so that a service can change
// its store in rolling deploys without two holders at any time: first all copies use the
// old store, then both, then the new one. Copies of neighbouring steps exclude each other,
// since they have a store in common. Copies of the first and the last step have none: the
// second step must have ended everywhere before the last one begins anywhere.
//
// Every copy gives the same two stores in the same order. The old one is acquired first,
// and is renewed and held while the new one is waited for. That cannot end in a deadlock:
// who holds the new store only never asks for the old one, and everybody else has asked for
// the old one before. Two copies with opposite orders can wait for each other until their
// contexts end. Where both Lockers turn out to be on one store, since the key is held there by
// the same acquisition, the error matches ErrInvalid.
// When the new store refuses or fails, the old one is released again before the error is
// returned. A refusal names the holder in the store that refused: in the old one that may
// be somebody who is waiting for the new one.
//
// A lease is lost as soon as it is lost in one of the stores. The cause says in which, and
// matches the error of that store; the other store is then released in the background.
// Deadline is the earlier one. Renew renews both. Release ends the context, then the hold
// in the new store, then that in the old one, and joins their errors.
//
// The token is the larger of the two, so it is never smaller than the last of either
// store, and rises from grant to grant. It rises between copies of neighbouring steps too:
// a store whose tokens are its revisions ([backend.TokenRevision]) is told to count on
// from the larger one ([backend.FloorRaiser]), before the lease is returned. Of the other
// stores the clocks should agree: Release waits for the slower one, for at most 100 ms, until
// it has passed the token. A warning is logged, once, when the token of such a new store is not
// above that of the old one: copies of the last step could then get smaller tokens than
// there were, and a resource that compares them would refuse these.
//
// All options apply to both stores, and what one of them cannot honour is refused. Where one
// counts the holds of an owner in the Locker, so does the pair. Default
// TTLs are those of each Locker. Loggers and observers are those of each, too: an
// acquisition is told to both observers.
//
// The pair takes over both Lockers: Close closes them, at the same time. Both does no I/O.
// The error matches ErrInvalid when one is nil, when they are the same, or when no TTL fits
// both.
func Both(old, next Locker) (*Pair, error) {
	if old == nil || next == nil {
		return nil, fmt.Errorf("%w: Both needs two Lockers, and one is nil", ErrInvalid)
	}
	p := &Pair{log: construct.Logger(nil), leases: map[*pairLease]struct{}{}, gone: make(chan struct{})}
	for i, l := range [2]Locker{old, next} {
		p.sides[i] = side{locker: l, called: [2]string{"the old store", "the new store"}[i]}
		if says, ok := l.(interface{ Guarantees() backend.Guarantees }); ok {
			g := says.Guarantees()
			p.sides[i].claims = &g
			p.sides[i].called += " (" + g.Name + ")"
		}
		if c, ok := l.(*Client); ok {
			p.log = c.server.Log
			if c.guarantees.Token == backend.TokenRevision {
				p.sides[i].raiser, _ = backend.As[backend.FloorRaiser](c.Backend())
			}
		}
	}
	first, ok := old.(*Client)
	if second, too := next.(*Client); ok && too && first == second {
		return nil, fmt.Errorf("%w: the old Locker is the new one; open a Locker on each store", ErrInvalid)
	}
	p.claims = p.weaker()
	if p.claims.Reentrancy == backend.ReentrancyClient {
		p.own = backend.NewID().Hex()
	}
	if g := p.claims; g.CheckTTL(g.NearestTTL(cmp.Or(g.MinTTL, DefaultTTL))) != nil {
		return nil, fmt.Errorf("%w: no TTL fits both stores: %s needs at least %s, and %s is the most; set the limits of the servers so that they meet",
			ErrInvalid, g.Name, g.MinTTL, g.MaxTTL)
	}
	return p, nil
}

// Format prints what the pair is, with every verb in the same way.
func (p *Pair) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "Locker on %s and %s", p.sides[oldSide].called, p.sides[newSide].called)
}

// TryAcquire asks the old store once, and when that grants, the new one once, as
// [Locker] says in full. With an error nothing is held in either.
func (p *Pair) TryAcquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	l, _, err := p.acquire(ctx, key, opts, false)
	return l, err
}

// Acquire waits for the old store, and then, holding that, for the new one, as [Locker]
// says in full. With an error nothing is held in either. When the hold in the old store is
// lost while the new one is waited for, both are waited for again.
func (p *Pair) Acquire(ctx context.Context, key string, opts ...Option) (Lease, error) {
	for {
		l, again, err := p.acquire(ctx, key, opts, true)
		if !again || ctx.Err() != nil {
			return l, err
		}
	}
}

// Close ends every wait and every lease with ErrClosed and closes both Lockers, as
// [Locker] says in full. The error joins theirs.
func (p *Pair) Close() error {
	p.mu.Lock()
	second := p.closed
	p.closed = true
	leases := p.leases
	p.leases = nil
	p.mu.Unlock()
	if second {
		<-p.gone
		return p.closeErr
	}
	defer close(p.gone)
	for l := range leases {
		l.endUnasked(ErrClosed)
	}
	p.closeErr = joined(p.eachSide(func(i int) error { return p.sides[i].locker.Close() }))
	return p.closeErr
}

// eachSide calls f for both sides at the same time.
func (p *Pair) eachSide(f func(i int) error) (errs [2]error) {
	var other sync.WaitGroup
	other.Go(func() { errs[newSide] = p.fromSide(newSide, f(newSide)) })
	errs[oldSide] = p.fromSide(oldSide, f(oldSide))
	other.Wait()
	return errs
}

// fromSide adds to an error which store it is from.
func (p *Pair) fromSide(side int, err error) error {
	if err == nil {
		return nil
	}
	return &sideError{p.sides[side].called, err}
}

// sideError is the error of one store.
type sideError struct {
	called string
	err    error
}

func (e *sideError) Error() string { return e.called + ": " + e.err.Error() }
func (e *sideError) Unwrap() error { return e.err }

// joined is errors.Join, which leaves a single error as it is.
func joined(errs [2]error) error {
	if errs[0] == nil || errs[1] == nil {
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(errs[newSide], errs[oldSide])
}

// check refuses what one of the stores cannot honour, before anything is sent to the other.
func (p *Pair) check(ctx context.Context, key string, opts []Option) (Settings, error) {
	if err := ValidateKey(key); err != nil {
		return Settings{}, err
	}
	s, err := ResolveOptions(opts...)
	if err != nil {
		return s, err
	}
	if s.TTL != 0 {
		if err := p.claims.CheckTTL(s.TTL); err != nil {
			return s, err
		}
	}
	for _, side := range p.sides {
		if side.claims == nil {
			continue
		}
		switch g := side.claims; {
		case s.Owner != "" && g.Reentrancy == backend.ReentrancyNone:
			return s, fmt.Errorf("%w: %s has no reentrant locks; leave out WithOwner", ErrUnsupported, side.called)
		case s.NoRenewal && !g.WithoutRenewal:
			return s, fmt.Errorf("%w: %s always renews; leave out WithoutRenewal, or use WithMaxHold", ErrUnsupported, side.called)
		}
	}
	if err := ctx.Err(); err != nil {
		return s, fmt.Errorf("lock: acquiring %q: %w", key, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return s, ErrClosed
	}
	return s, nil
}

// acquire asks the old store and then the new one. It also reports whether an error is
// one after which everything can be asked again.
func (p *Pair) acquire(ctx context.Context, key string, opts []Option, waits bool) (Lease, bool, error) {
	set, err := p.check(ctx, key, opts)
	if err != nil {
		return nil, false, err
	}
	shown := backend.NewID().Hex()[:16]
	opts = append(slices.Clone(opts), p.ownOwner, func(s *Settings) { s.pair = shown })
	// The maximum hold begins with the grant of the new store, and ends both.
	first, err := ask(p.sides[oldSide].locker, waits)(ctx, key, append(opts, func(s *Settings) { s.MaxHold = 0 })...)
	if err != nil {
		return nil, false, p.fromSide(oldSide, err)
	}
	var keeper keeper
	if set.NoRenewal {
		keeper.keep(first)
	}
	wait, stopWaiting := context.WithCancel(ctx)
	stopLooking := context.AfterFunc(first.Context(), stopWaiting)
	second, err := p.askSecond(wait, key, shown, opts, waits)
	stopLooking()
	stopWaiting()
	keeper.stop()
	ttl := cmp.Or(set.TTL, keeper.ttl)
	if err == nil && set.NoRenewal {
		p.eachSide(func(i int) error { topUp(ctx, [2]Lease{first, second}[i], ttl); return nil })
		err = ctx.Err()
	}
	lost := first.Context().Err() != nil
	if err != nil || lost {
		if second != nil {
			_ = second.Release(ctx)
		}
		cause := context.Cause(first.Context())
		_ = first.Release(ctx) // its Locker repeats it, and logs what is wrong
		switch {
		case errors.Is(cause, ErrClosed):
			return nil, false, ErrClosed
		case lost && ctx.Err() == nil:
			return nil, true, fmt.Errorf("%w: the hold of %q in %s ended while %s was asked: %v", ErrUnavailable, key, p.sides[oldSide].called, p.sides[newSide].called, cause)
		}
		if second == nil {
			err = p.fromSide(newSide, err)
		}
		return nil, false, err
	}
	err = p.level(ctx, first, second)
	for i, lease := range [2]Lease{first, second} {
		if err == nil {
			err = p.fromSide(i, stillOfUse(lease, ttl, set.MaxHold))
		}
	}
	if err != nil {
		closed := errors.Is(context.Cause(first.Context()), ErrClosed) || errors.Is(context.Cause(second.Context()), ErrClosed)
		_ = second.Release(ctx)
		_ = first.Release(ctx)
		if closed {
			return nil, false, ErrClosed
		}
		return nil, true, err
	}
	l := newPairLease(p, first, second)
	if !p.admit(l) {
		_ = l.Release(ctx)
		return nil, false, ErrClosed
	}
	return l, false, nil
}

// ask is the call that waits, or does not.
func ask(l Locker, waits bool) func(context.Context, string, ...Option) (Lease, error) {
	if waits {
		return l.Acquire
	}
	return l.TryAcquire
}

// askSecond asks the new store while the key is held in the old one, where the record shows
// the mark. Until the stores are known to be two, a try comes first: in one store it is refused
// by that mark, and a wait would have no end.
func (p *Pair) askSecond(ctx context.Context, key, mark string, opts []Option, waits bool) (Lease, error) {
	next := p.sides[newSide].locker
	if p.apart.Load() {
		return ask(next, waits)(ctx, key, opts...)
	}
	lease, err := next.TryAcquire(ctx, key, opts...)
	if err == nil {
		p.apart.Store(true)
		return lease, nil
	}
	if held := (*HeldError)(nil); errors.As(err, &held) && held.Holder.PairID == mark {
		return nil, fmt.Errorf("%w: the old and the new store are one, in which this acquisition holds %q already; name two stores, or use this one alone", ErrInvalid, key)
	}
	if !waits {
		return nil, err
	}
	return next.Acquire(ctx, key, opts...)
}

// ownOwner is an option that makes an owner one of this Locker, where that is needed.
func (p *Pair) ownOwner(s *Settings) {
	if s.Owner != "" && p.own != "" {
		sum := sha256.Sum256([]byte(p.own + s.Owner))
		s.Owner = hex.EncodeToString(sum[:])
	}
}

// admit takes note of a lease, unless the pair has been closed.
func (p *Pair) admit(l *pairLease) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.leases[l] = struct{}{}
	return true
}

func (p *Pair) forget(l *pairLease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.leases, l)
}

// levelLimit is how long a store may take to raise its tokens. It has answered just now.
const levelLimit = 2 * time.Second

// level has the next token of each store be larger than the tokens of this lease. Where a
// store can't be told, and its clock does not see to it, it warns, once.
func (p *Pair) level(ctx context.Context, leases ...Lease) error {
	before, after := leases[oldSide].Token(), leases[newSide].Token()
	for i, s := range p.sides {
		mine, other := before, after
		if i == newSide {
			mine, other = after, before
		}
		if s.raiser == nil || mine >= other || mine == 0 {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, levelLimit)
		err := s.raiser.RaiseFloor(limited, other)
		cancel()
		if err != nil {
			return fmt.Errorf("%w: the tokens of %s could not be raised above those of the other store: %w", ErrUnavailable, s.called, err)
		}
	}
	if before == 0 || after > before || p.sides[newSide].raiser != nil || p.warned.Swap(true) {
		return nil
	}
	p.log.Warn("the tokens of the new store are below those of the old one: copies that use the new store alone would get smaller tokens than there were; "+
		"compare the clocks of the servers, and stay with both stores until the new one has passed the old one, or stop comparing tokens",
		"key", leases[oldSide].Key(), "old_store", p.sides[oldSide].called, "old_token", before, "new_store", p.sides[newSide].called, "new_token", after)
	return nil
}
