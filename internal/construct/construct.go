// Package construct is what the constructors of the backends have in common.
package construct

import (
	"log/slog"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Client puts a Client on a backend that has just been opened, unless err says that it
// was not. The backend is closed when there is none.
func Client(b backend.Backend, err error, opts lock.Options) (*lock.Client, error) {
	if err != nil {
		return nil, err
	}
	c, err := lock.New(b, &opts)
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return c, nil
}

// Options are the given ones, which may be nil, and then the zero value.
func Options[O any](opts *O) *O {
	if opts == nil {
		return new(O)
	}
	return opts
}

// Logger is the given one, or one that writes nothing.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
