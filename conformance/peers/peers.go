// Package peers runs the conformance suite on locks that were not written here,
// each through an adapter of its own file. What a library never claimed is not
// counted against it.
//
// It is a module of its own, so that none of these libraries comes to those who use
// the lock package.
package peers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// Peer is a lock of somebody else's.
type Peer struct {
	Name    string // import path
	Version string
	Server  string // "redis" or "etcd"
	// Adapter says what the adapter adds, since no two interfaces are alike.
	Adapter string
	// NotClaimed are rules, or subjects of rules, about what the library does not
	// promise anywhere, each with what its documentation says instead.
	NotClaimed map[string]string
	// Breaks says of each rule that the library breaks what happens, and what its
	// documentation promises of it. The page has no break without it.
	Breaks map[string]string
	// Record is where the library keeps the hold of the key %s on its server: a key of
	// Redis, or a prefix of etcd.
	Record string

	// Guarantees are what the library's documentation promises.
	Guarantees backend.Guarantees
	TTL        time.Duration

	open func(ctx context.Context, addr string, ttl time.Duration) (lock.Locker, error)
}

// All lists the peers.
func All() []Peer { return []Peer{bsmRedislock, redsyncMutex, rueidisLock, etcdMutex} }

// Config is the peer as the suite sees it, on the server at addr.
func (p Peer) Config(addr string) conformance.Config {
	cfg := conformance.Config{
		Name: p.Name, Guarantees: &p.Guarantees, TTL: p.TTL,
		Open:   func(ctx context.Context) (lock.Locker, error) { return p.open(ctx, addr, p.TTL) },
		Remove: func(ctx context.Context, key string) error { return p.remove(ctx, addr, key) },
	}
	if !p.Guarantees.WithoutRenewal {
		cfg.Kill = func(l lock.Locker) { l.(*adapter).abandon() }
	}
	return cfg
}

// remove deletes a record as an operator would, behind the back of its holder.
func (p Peer) remove(ctx context.Context, addr, key string) error {
	if p.Server == "redis" {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		return rdb.Del(ctx, fmt.Sprintf(p.Record, key)).Err()
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Delete(ctx, fmt.Sprintf(p.Record, url.PathEscape(key)), clientv3.WithPrefix())
	return err
}

// adapter makes a lock.Locker of two functions.
type adapter struct {
	ttl      time.Duration
	renews   bool // by itself, always
	try      func(ctx context.Context, key string, ttl time.Duration) (*lease, error)
	wait     func(ctx context.Context, key string, ttl time.Duration) (*lease, error)
	shutdown func() error
	abandon  func() // as a process that dies: nothing is sent any more
	closed   atomic.Bool
}

// settle checks the key and the options as lock.Locker asks of every adapter.
func (a *adapter) settle(key string, opts []lock.Option) (time.Duration, error) {
	if err := lock.ValidateKey(key); err != nil {
		return 0, err
	}
	s, err := lock.ResolveOptions(opts...)
	switch {
	case err != nil:
		return 0, err
	case s.Owner != "" || s.MaxHold != 0:
		return 0, fmt.Errorf("%w: owners and maximum holds", lock.ErrUnsupported)
	case a.renews && (s.NoRenewal || s.TTL != 0 && s.TTL != a.ttl):
		return 0, fmt.Errorf("%w: the TTL is that of the Locker, and leases are always renewed", lock.ErrUnsupported)
	case s.TTL == 0:
		s.TTL = a.ttl
	}
	return s.TTL, nil
}

func (a *adapter) call(ctx context.Context, key string, opts []lock.Option, f func(context.Context, string, time.Duration) (*lease, error)) (lock.Lease, error) {
	ttl, err := a.settle(key, opts)
	if err != nil {
		return nil, err
	}
	if a.closed.Load() {
		return nil, lock.ErrClosed
	}
	l, err := f(ctx, key, ttl)
	if err != nil {
		return nil, err
	}
	l.key = key
	var end context.CancelCauseFunc
	l.ctx, end = context.WithCancelCause(context.Background())
	if l.held != nil {
		context.AfterFunc(l.held, func() {
			if a.closed.Load() {
				end(lock.ErrClosed)
			} else {
				end(lock.ErrLost)
			}
		})
	}
	release := l.release
	l.release = func(ctx context.Context) error {
		lost := l.held != nil && l.held.Err() != nil
		end(lock.ErrReleased)
		if err := release(ctx); err != nil || !lost {
			return err
		}
		return lock.ErrLost // the library has said so by its context
	}
	return l, nil
}

func (a *adapter) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	l, err := a.call(ctx, key, opts, a.wait)
	if err != nil && ctx.Err() != nil && !errors.Is(err, lock.ErrClosed) {
		// A wait that was given up: somebody else had the key.
		err = errors.Join(lock.ErrHeld, context.Cause(ctx), err)
	}
	return l, err
}

func (a *adapter) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	return a.call(ctx, key, opts, a.try)
}

func (a *adapter) Close() error {
	if a.closed.Swap(true) {
		return nil
	}
	return a.shutdown()
}

// lease makes a lock.Lease of what the library has. Missing functions are what it
// does not have.
type lease struct {
	key      string
	token    uint64
	held     context.Context // of the library; it ends with the hold
	ctx      context.Context // of the adapter; its cause is one of package lock
	deadline func() time.Time
	renew    func(ctx context.Context) error
	release  func(ctx context.Context) error
}

func (l *lease) Key() string              { return l.key }
func (l *lease) Token() uint64            { return l.token }
func (l *lease) Context() context.Context { return l.ctx }

func (l *lease) Deadline() (time.Time, bool) {
	if l.deadline == nil {
		return time.Time{}, false
	}
	return l.deadline(), true
}

func (l *lease) Renew(ctx context.Context) error {
	if l.renew == nil {
		return lock.ErrUnsupported
	}
	return l.renew(ctx)
}

func (l *lease) Release(ctx context.Context) error { return l.release(ctx) }

// as adds the error of package lock that an error of the library is.
func as(err, theirs, ours error) error {
	if errors.Is(err, theirs) {
		return errors.Join(ours, err)
	}
	return err
}

// once passes the first call on, and answers lock.ErrNotHeld afterwards.
func once(f func(ctx context.Context) error) func(ctx context.Context) error {
	var mu sync.Mutex
	done := false
	return func(ctx context.Context) error {
		mu.Lock()
		again := done
		done = true
		mu.Unlock()
		if again {
			return lock.ErrNotHeld
		}
		return f(ctx)
	}
}
