// Package construct is what the constructors of the backends have in common.
package construct

import "log/slog"

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
