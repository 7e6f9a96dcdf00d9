package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
)

// AcquireFunc asks a finished lock for a key, once or until ctx ends. ttl is that of the
// lease, for locks whose callers choose it.
type AcquireFunc = func(ctx context.Context, key string, ttl time.Duration) (Handle, error)

// Adapter makes a lock.Locker of a finished lock that has an interface of its own, for
// Config.Open. It checks keys and options, refuses what the lock cannot do, puts errors
// into the words of package lock, and keeps the lease's context. One Adapter is one
// client: fill a new one in each call of Open.
//
// At least one of Lock and Try is needed. What else is missing, the adapter does without,
// as each field says. The suite then sees the lock with what the adapter adds: what it
// adds is not the lock's merit, nor its fault.
type Adapter struct {
	// TTL is that of leases without lock.WithTTL.
	TTL time.Duration
	// MinTTL, MaxTTL and TTLGrain are the limits of lock.WithTTL, as in the guarantees. What is
	// outside of them, or no multiple of the grain, is refused. Default: there are none.
	MinTTL, MaxTTL, TTLGrain time.Duration
	// Renews says that the lock renews its leases itself, always, with one TTL. Then
	// lock.WithoutRenewal and other TTLs are refused, and Config.Kill is Abandon.
	Renews bool

	// Lock waits for the key until ctx ends. A lock whose wait has no context is given with
	// WithoutContext. Without Lock, Acquire tries every 20 ms.
	Lock AcquireFunc
	// Try asks for the key once. Without Try, TryAcquire waits with Lock for no more than
	// TryFor.
	Try AcquireFunc
	// TryFor is how long Lock may take where there is no Try, longer where the machine
	// stands still meanwhile. It must be longer than a grant takes on a free key; rules give
	// a try so much more time. Default: 200 ms.
	TryFor time.Duration
	// Taken reports whether an error of the lock says that somebody else has the key, or
	// where it came from a renewal or a release, that the caller does not have it any
	// more. Default: no error does.
	Taken func(err error) bool
	// Unlock releases the key of whoever has it, for locks whose release names no
	// acquisition. Only the last lease of the key in this Adapter reaches it, and only
	// once, unless its Handle has a Release.
	Unlock func(ctx context.Context, key string) error
	// Close ends the client, after the contexts of its leases. It has to release what is held
	// and to end the waits: a lock whose clients have nothing to close can't keep the subject
	// close, and declares that (Config.Deviations). Default: nothing.
	Close func() error
	// Stop is what Abandon calls: from then on the lock must send nothing by itself, as if
	// its process had died. Default: nothing, which is enough for a lock that does not
	// renew by itself.
	Stop func()
}

// Handle is what a finished lock has returned for a grant. Every field may be left out.
type Handle struct {
	// Token is the fencing token.
	Token uint64
	// Held is a context of the lock that ends with the hold. The lease's context ends
	// with it, for the same cause where that is a loss; else the deadline has passed or
	// somebody has removed the hold.
	Held context.Context
	// Deadline is until when the hold is certain.
	Deadline func() time.Time
	// Renew extends the hold. Without it, Lease.Renew returns lock.ErrUnsupported.
	Renew func(ctx context.Context) error
	// Release ends the hold. Without it, Adapter.Unlock does.
	Release func(ctx context.Context) error
}

// WithoutContext makes a Lock, or a Try, of a call that takes no context. When the
// context ends first, the call goes on in the background: the next call for the key with the
// same TTL takes its place, and what is granted while nobody waits is given back with release.
func WithoutContext(call func(key string, ttl time.Duration) (Handle, error), release func(key string, h Handle)) AcquireFunc {
	type wanted struct {
		key string
		ttl time.Duration
	}
	var mu sync.Mutex
	left := map[wanted][]*blindCall{} // calls under way that nobody waits for
	begin := func(w wanted) *blindCall {
		c := &blindCall{done: make(chan struct{})}
		go func() {
			h, err := call(w.key, w.ttl)
			mu.Lock()
			c.h, c.err = h, err
			close(c.done)
			i := slices.Index(left[w], c)
			if i >= 0 {
				left[w] = slices.Delete(left[w], i, i+1)
			}
			mu.Unlock()
			if i >= 0 && err == nil {
				release(w.key, h)
			}
		}()
		return c
	}
	return func(ctx context.Context, key string, ttl time.Duration) (Handle, error) {
		if err := ctx.Err(); err != nil {
			return Handle{}, err
		}
		var c *blindCall
		w := wanted{key, ttl}
		mu.Lock()
		if n := len(left[w]); n > 0 {
			c, left[w] = left[w][n-1], left[w][:n-1]
		}
		mu.Unlock()
		if c == nil {
			c = begin(w)
		}
		select {
		case <-c.done:
			return c.h, c.err
		case <-ctx.Done():
		}
		mu.Lock()
		defer mu.Unlock()
		select {
		case <-c.done:
			return c.h, c.err
		default:
			left[w] = append(left[w], c)
			return Handle{}, ended(ctx)
		}
	}
}

// blindCall is a call of a lock that nothing can end.
type blindCall struct {
	done chan struct{}
	h    Handle
	err  error
}

// ended is the error of a context that has ended, with its cause beside it.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// DetachedContext makes a Lock, or a Try, of a call whose hold ends with the context that
// it is given: the call gets another one, which ends when the caller's ends before the
// grant, and when the hold is released.
func DetachedContext(call AcquireFunc) AcquireFunc {
	return func(ctx context.Context, key string, ttl time.Duration) (Handle, error) {
		life, end := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(ctx, end)
		h, err := call(life, key, ttl)
		if !stop() { // ctx has ended, and the hold with it
			if err == nil && h.Release != nil {
				_ = h.Release(context.WithoutCancel(ctx))
			}
			if errors.Is(err, context.Canceled) { // so has life ended, whatever has ended ctx
				err = fmt.Errorf("%w: %v", ended(ctx), err)
			} else {
				err = errors.Join(ended(ctx), err)
			}
		}
		if err != nil {
			end()
			return Handle{}, err
		}
		if release := h.Release; release != nil {
			h.Release = func(ctx context.Context) error { defer end(); return release(ctx) }
		}
		return h, nil
	}
}

// Once passes the first call on, and answers lock.ErrNotHeld afterwards: for a release
// that says nothing of its own, or may be called once only.
func Once(release func(ctx context.Context) error) func(ctx context.Context) error {
	var done atomic.Bool
	return func(ctx context.Context) error {
		if done.Swap(true) {
			return lock.ErrNotHeld
		}
		return release(ctx)
	}
}

// Abandon leaves a Locker of an Adapter as a process that dies: nothing is renewed,
// released or closed by it any more. It is for Config.Kill. It panics if l is another
// Locker.
func Abandon(l lock.Locker) {
	a := l.(*adapted)
	a.dead.Store(true)
	if a.Stop != nil {
		a.Stop()
	}
}

// Locker is the Adapter as a lock.Locker. The Adapter is not changed afterwards.
func (a Adapter) Locker() (lock.Locker, error) {
	switch {
	case a.Lock == nil && a.Try == nil:
		return nil, errors.New("conformance: Adapter needs Lock or Try")
	case a.TTL <= 0:
		return nil, errors.New("conformance: Adapter.TTL is how long a lease lasts, and must be positive")
	}
	if a.TryFor == 0 {
		a.TryFor = 200 * time.Millisecond
	}
	if a.Taken == nil {
		a.Taken = func(error) bool { return false }
	}
	life, end := context.WithCancelCause(context.Background())
	return &adapted{Adapter: a, life: life, end: end, last: map[string]*adaptedLease{}}, nil
}

const adapterPause = 20 * time.Millisecond

// adapted is the Locker of an Adapter.
type adapted struct {
	Adapter
	closed, dead atomic.Bool
	life         context.Context // of all leases
	end          context.CancelCauseFunc

	mu   sync.Mutex
	last map[string]*adaptedLease // by key, where Unlock releases it
}

// settle checks the key and the options.
func (a *adapted) settle(ctx context.Context, key string, opts []lock.Option) (time.Duration, error) {
	if err := lock.ValidateKey(key); err != nil {
		return 0, err
	}
	s, err := lock.ResolveOptions(opts...)
	switch {
	case err != nil:
		return 0, err
	case s.Owner != "" || s.MaxHold != 0:
		return 0, fmt.Errorf("%w: owners and maximum holds", lock.ErrUnsupported)
	case a.Renews && (s.NoRenewal || s.TTL != 0 && s.TTL != a.TTL):
		return 0, fmt.Errorf("%w: the TTL is that of the Locker, and leases are always renewed", lock.ErrUnsupported)
	case s.TTL != 0 && (s.TTL < a.MinTTL || a.MaxTTL > 0 && s.TTL > a.MaxTTL || a.TTLGrain > 0 && s.TTL%a.TTLGrain != 0):
		return 0, fmt.Errorf("%w: the TTL of %s is outside of MinTTL and MaxTTL of the Adapter, or no multiple of TTLGrain", lock.ErrInvalid, s.TTL)
	case a.closed.Load():
		return 0, lock.ErrClosed
	case ctx.Err() != nil:
		return 0, ended(ctx)
	case s.TTL == 0:
		s.TTL = a.TTL
	}
	return s.TTL, nil
}

func (a *adapted) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	ttl, err := a.settle(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	if a.Try != nil {
		return a.lease(key)(a.Try(ctx, key, ttl))
	}
	short, cancel := a.patience(ctx)
	defer cancel()
	l, err := a.lease(key)(a.Lock(short, key, ttl))
	if (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) && short.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: it was not granted within %s", lock.ErrHeld, a.TryFor)
	}
	return l, err
}

// patience is a context that ends after TryFor. It is waited for in many steps, so that a
// machine that stands still for a while makes one of them longer, and the key is not said
// to be held.
func (a *adapted) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	const steps = 20
	short, cancel := context.WithCancelCause(ctx)
	go func() {
		step := time.NewTicker(max(a.TryFor/steps, 1))
		defer step.Stop()
		for range steps {
			select {
			case <-step.C:
			case <-short.Done():
				return
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return short, func() { cancel(nil) }
}

// TriesFor is for how long a refusal by TryAcquire is waited for, since there is no Try.
func (a *adapted) TriesFor() time.Duration {
	if a.Try != nil {
		return 0
	}
	return a.TryFor
}

func (a *adapted) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	ttl, err := a.settle(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	var l lock.Lease
	if a.Lock != nil {
		l, err = a.lease(key)(a.Lock(ctx, key, ttl))
	} else {
		l, err = a.poll(ctx, key, ttl)
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, lock.ErrClosed) {
		err = errors.Join(lock.ErrHeld, ended(ctx), err) // a wait that was given up: somebody else had the key
	}
	return l, err
}

func (a *adapted) poll(ctx context.Context, key string, ttl time.Duration) (lock.Lease, error) {
	for {
		l, err := a.lease(key)(a.Try(ctx, key, ttl))
		if !errors.Is(err, lock.ErrHeld) {
			return l, err
		}
		t := time.NewTimer(adapterPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
		if a.closed.Load() {
			return nil, lock.ErrClosed
		}
	}
}

func (a *adapted) Close() error {
	first := !a.closed.Swap(true)
	a.end(lock.ErrClosed)
	if !first || a.dead.Load() || a.Adapter.Close == nil {
		return nil
	}
	return a.Adapter.Close()
}

// worded adds the word of package lock for an error that says that the key is taken.
func (a *adapted) worded(err, taken error) error {
	switch {
	case err == nil:
		return nil
	case a.Taken(err):
		return errors.Join(taken, err)
	case a.closed.Load() && errors.Is(taken, lock.ErrHeld):
		return errors.Join(lock.ErrClosed, err)
	}
	return err
}

// lease makes a lease of what the lock has returned.
func (a *adapted) lease(key string) func(Handle, error) (lock.Lease, error) {
	return func(h Handle, err error) (lock.Lease, error) {
		if err != nil {
			return nil, a.worded(err, lock.ErrHeld)
		}
		l := &adaptedLease{a: a, h: h, key: key}
		l.ctx, l.end = context.WithCancelCause(a.life)
		if h.Held != nil {
			context.AfterFunc(h.Held, func() { l.end(l.loss()) })
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if h.Release == nil {
			a.last[key] = l
		}
		return l, nil
	}
}

// adaptedLease is the lease of a Handle.
type adaptedLease struct {
	a   *adapted
	h   Handle
	key string
	ctx context.Context
	end context.CancelCauseFunc
}

func (l *adaptedLease) Key() string              { return l.key }
func (l *adaptedLease) Token() uint64            { return l.h.Token }
func (l *adaptedLease) Context() context.Context { return l.ctx }

func (l *adaptedLease) Deadline() (time.Time, bool) {
	if l.h.Deadline == nil || l.ctx.Err() != nil {
		return time.Time{}, false
	}
	return l.h.Deadline(), true
}

// loss is why the lock has ended the hold: for a reason of its own, or since its time was
// over; else somebody has removed it.
func (l *adaptedLease) loss() error {
	switch cause := context.Cause(l.h.Held); {
	case errors.Is(cause, lock.ErrLost):
		return cause
	case l.h.Deadline != nil && !time.Now().Before(l.h.Deadline()):
		return lock.ErrExpired
	}
	return lock.ErrTakenOver
}

func (l *adaptedLease) Renew(ctx context.Context) error {
	switch {
	case l.h.Renew == nil:
		return lock.ErrUnsupported
	case l.a.dead.Load():
		return lock.ErrClosed
	}
	err := l.a.worded(l.h.Renew(ctx), lock.ErrNotHeld)
	if err != nil && l.ctx.Err() != nil && !errors.Is(err, lock.ErrNotHeld) {
		return errors.Join(lock.ErrNotHeld, err) // the lock may look at ctx first
	}
	return err
}

// Release ends the context first. That the lock has said by its context that the hold was
// lost is said again.
func (l *adaptedLease) Release(ctx context.Context) error {
	lost := l.h.Held != nil && l.h.Held.Err() != nil
	if lost {
		l.end(l.loss())
	}
	l.end(lock.ErrReleased)
	if l.a.dead.Load() {
		return lock.ErrClosed
	}
	err := l.a.worded(l.release(ctx), lock.ErrNotHeld)
	switch cause := context.Cause(l.ctx); {
	case errors.Is(cause, lock.ErrLost) && !errors.Is(err, lock.ErrLost):
		return errors.Join(cause, err)
	case err == nil && lost:
		return lock.ErrLost
	}
	return err
}

func (l *adaptedLease) release(ctx context.Context) error {
	if l.h.Release != nil {
		return l.h.Release(ctx)
	}
	l.a.mu.Lock()
	mine := l.a.last[l.key] == l
	if mine {
		delete(l.a.last, l.key)
	}
	l.a.mu.Unlock()
	if !mine || l.a.Unlock == nil {
		return lock.ErrNotHeld
	}
	return l.a.Unlock(ctx, l.key)
}
