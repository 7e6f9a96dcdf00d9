package lock

import "github.com/mortiselock/lock/backend"

// New returns a Locker on a backend. It takes over the backend: Close closes it.
// The options may be nil.
func New(b backend.Backend, opts *Options) (Locker, error) {
	panic("being written")
}
