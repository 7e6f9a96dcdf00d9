package lock

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

// Open returns a Client for a URL such as mem:, file:/var/lib/app/locks or
// redis://host:6379. The package of the backend must be imported. The options may be nil.
// An unknown scheme, an unknown parameter and a setting that the backend cannot honour are
// refused with an error matching ErrInvalid or ErrUnsupported. ctx bounds the opening only.
//
// Every URL may have the parameter ttl, as in redis://host?ttl=30s. It means the same as
// Options.TTL, which wins where it is set.
//
// The backend is found in [backend.DefaultMux]. With a mux of your own, give what
// [backend.Mux.Open] returns to [New].
func Open(ctx context.Context, url string, opts *Options) (*Client, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TTL < 0 {
		return nil, fmt.Errorf("%w: the default TTL is %s; it must be positive, or zero for the default", ErrInvalid, o.TTL)
	}
	url, ttl, err := backend.CutTTL(url)
	if err != nil {
		return nil, err
	}
	if o.TTL == 0 {
		o.TTL = ttl
	}
	cfg := backend.OpenConfig{TTL: o.TTL, Logger: o.Logger}
	if cfg.TTL == 0 {
		cfg.TTL = DefaultTTL
	}
	b, err := backend.DefaultMux.Open(ctx, url, cfg)
	if err != nil {
		return nil, err
	}
	c, err := New(b, &o)
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	return c, nil
}
