package flawed

import (
	"context"
	"sync"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var z190 = Lock{
	ID: "Z190", Title: "one try for all who ask for a key",
	Summary: "When the first of several who try one key gives up, the others fail.",
	Seen:    "golang.org/x/sync/singleflight around a call that has a context.",
	Instead: "A context of its own for the request, or a request for each.",
	File:    "one_try_per_key.go", Over: Memory,
	Rule: "CancelHarmsNobody",
	On: onPolicy(func(l *lock.Client, _ backend.Backend) lock.Locker {
		return &oneTryPerKey{policy: policy{l}, under: map[string]*party{}}
	}),
}

// oneTryPerKey spares the server the requests of those who would be refused together.
//
//	A: TryAcquire("report"), on a context that ends in 100 ms; the server is slow
//	B: TryAcquire("report"), on a context without an end; waits for A's answer
//	A's context ends
//	B: "context canceled", though nobody has cancelled anything of B's
//
// Who is not refused asks for itself. Where requests are quick, two hardly ever meet. Caught by
// CancelHarmsNobody, which delays the request.
type oneTryPerKey struct {
	policy
	mu    sync.Mutex
	under map[string]*party // by key
}

// TryAcquire implements lock.Locker.
func (o *oneTryPerKey) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
	o.mu.Lock()
	p := o.under[key]
	if p == nil {
		p = &party{done: make(chan struct{})}
		o.under[key] = p
		o.mu.Unlock()
		lease, err := o.policy.TryAcquire(ctx, key, opts...)
		o.mu.Lock()
		delete(o.under, key)
		o.mu.Unlock()
		p.err = err
		close(p.done)
		return lease, err
	}
	o.mu.Unlock()
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.err != nil {
		return nil, p.err
	}
	return o.policy.TryAcquire(ctx, key, opts...)
}
