package conformance

import (
	"context"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// faulty opens a Locker whose requests can be disturbed between it and the server.
// The optional interfaces are left out, so that every request is a try, a renewal or
// a release: the lock package does without them.
func (e *env) faulty() (*client, *faultlock.Faults) {
	var f *faultlock.Faults
	cl := e.lockerFrom(func(ctx context.Context) (lock.Locker, error) {
		b, err := e.openBackend(ctx)
		if err != nil {
			return nil, err
		}
		f = faultlock.New(b, nil)
		return wrap(f.Primitives(), e.ttl)
	})
	return cl, f
}
