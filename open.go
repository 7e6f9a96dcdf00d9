package lock

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/mortiselock/lock/backend"
)

// OpenOption is a setting for [Open].
type OpenOption func(*openSettings)

type openSettings struct {
	Options
	mux *backend.Mux
}

// WithDefaultTTL sets the TTL of leases that don't ask for one with WithTTL.
func WithDefaultTTL(ttl time.Duration) OpenOption {
	return func(s *openSettings) {
		s.TTL = ttl
		if ttl <= 0 {
			s.TTL = -1 // refused by New; zero would mean the default
		}
	}
}

// WithLogger sets the logger for warnings.
func WithLogger(l *slog.Logger) OpenOption { return func(s *openSettings) { s.Logger = l } }

// WithObserver sets the observer.
func WithObserver(o Observer) OpenOption { return func(s *openSettings) { s.Observer = o } }

// WithMux finds the backend in a mux of the caller's instead of
// backend.DefaultMux, so that no package-level state is involved. Open refuses a nil
// one with ErrInvalid.
func WithMux(m *backend.Mux) OpenOption { return func(s *openSettings) { s.mux = m } }

// Open returns a Locker for a URL such as mem:, file:/var/lib/app/locks or
// redis://host:6379. The package of the backend must be imported. An unknown
// scheme, an unknown parameter and a setting that the backend cannot honour are
// refused with an error matching ErrInvalid or ErrUnsupported. ctx bounds the
// opening only.
func Open(ctx context.Context, url string, opts ...OpenOption) (Locker, error) {
	s := openSettings{mux: backend.DefaultMux}
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	if s.mux == nil {
		return nil, fmt.Errorf("%w: the mux of WithMux is nil", ErrInvalid)
	}
	if s.TTL < 0 {
		return nil, fmt.Errorf("%w: the default TTL must be positive", ErrInvalid)
	}
	cfg := backend.OpenConfig{TTL: s.TTL, Logger: s.Logger}
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	b, err := s.mux.Open(ctx, url, cfg)
	if err != nil {
		return nil, err
	}
	l, err := New(b, &s.Options)
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return l, nil
}
