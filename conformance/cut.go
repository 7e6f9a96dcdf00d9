package conformance

import (
	"context"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// faulty opens a Locker whose requests can be disturbed between it and the server.
// The optional interfaces are left out, so that every request is a try, a renewal or
// a release: the lock package does without them.
func (e *env) faulty() (*client, *faultlock.Faults) { return e.through((*faultlock.Faults).Primitives) }

// disturbed is faulty with the optional interfaces of the backend.
func (e *env) disturbed() (*client, *faultlock.Faults) { return e.through((*faultlock.Faults).Backend) }

func (e *env) through(seam func(*faultlock.Faults) backend.Backend) (*client, *faultlock.Faults) {
	var f *faultlock.Faults
	cl := e.lockerFrom(func(ctx context.Context) (lock.Locker, error) {
		b, err := e.openBackend(ctx)
		if err != nil {
			return nil, err
		}
		f = faultlock.New(b, nil)
		return e.wrap(seam(f), e.ttl)
	})
	return cl, f
}
