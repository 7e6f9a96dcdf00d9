// Package construct is what the constructors of the backends have in common.
package construct

import (
	"log/slog"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Locker puts a Locker on a backend that has just been opened, unless err says that it
// was not. The backend is closed when there is none.
func Locker(b backend.Backend, err error, opts lock.Options) (lock.Locker, error) {
	if err != nil {
		return nil, err
	}
	l, err := lock.New(b, &opts)
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return l, nil
}

// Logger is the given one, or one that writes nothing.
func Logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
