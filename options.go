package lock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Options are the settings of a [Client]. The zero value of each field, and a nil
// pointer, mean the default.
type Options struct {
	// TTL is the default time to live of a lease: how long others wait when the
	// holder dies. Default: the ttl of the URL, else DefaultTTL, or the nearest that the
	// backend accepts.
	TTL time.Duration

	// Logger receives warnings: failing renewals, losses, clean-up that could not
	// be confirmed, doubtful server settings. Renewals of a lease that go on failing
	// are logged once, and once more at info level when one is confirmed. So are waits for
	// a key whose server does not answer. Contention is logged at debug level. Default:
	// nothing is logged.
	Logger *slog.Logger

	// Observer is told about waits, attempts, grants, renewals, losses and releases, for
	// metrics and traces. Default: none.
	Observer Observer
}

// Option is a setting of one acquisition.
type Option func(*Settings)

// Settings is what the options of one acquisition amount to. Locks that
// implement [Locker] themselves read their options with [ResolveOptions].
type Settings struct {
	// TTL is the time to live asked for, or zero for the Locker's default.
	TTL time.Duration
	// Owner is the explicit owner, or empty. It is a secret, which printing does not show.
	Owner string `json:"-"`
	// NoRenewal is set by WithoutRenewal.
	NoRenewal bool
	// MaxHold is the longest time to hold, or zero for no limit.
	MaxHold time.Duration
	// Label is shown to those who are refused.
	Label string

	pair string // what the holder shows in both stores of a Pair
	err  error
}

// Format prints the settings for people, with every verb in the same way.
func (s Settings) Format(f fmt.State, _ rune) {
	owner := "no owner"
	if s.Owner != "" {
		owner = "an owner"
	}
	fmt.Fprintf(f, "settings: TTL %s, %s, renewal %t, maximum hold %s, label %q", s.TTL, owner, !s.NoRenewal, s.MaxHold, s.Label)
}

// WithTTL sets the time to live of the lease: how long others wait when its
// holder dies. A TTL that the backend cannot keep is refused, never rounded.
func WithTTL(ttl time.Duration) Option {
	return func(s *Settings) {
		s.TTL = ttl
		if ttl <= 0 {
			s.fail(fmt.Errorf("%w: TTL %s; it must be positive", ErrInvalid, ttl))
		}
	}
}

// WithOwner makes the acquisition reentrant: it succeeds at once when the key is
// already held by the same owner, as one more hold with the same token and a
// lease of its own. The key is free when the last hold has ended; at most
// backend.MaxHolds exist at a time. Owners are compared byte by byte. An owner is
// a secret like a password: whoever knows it walks in.
func WithOwner(owner string) Option {
	return func(s *Settings) {
		s.Owner = owner
		s.fail(backend.ValidateOwner(owner))
	}
}

// WithoutRenewal leaves renewal to the caller: the lease ends at its deadline
// unless [Lease.Renew] is called.
func WithoutRenewal() Option { return func(s *Settings) { s.NoRenewal = true } }

// WithMaxHold ends the hold after d, however well renewal works, with the cause
// ErrMaxHold, so that a stuck holder does not hold for ever.
func WithMaxHold(d time.Duration) Option {
	return func(s *Settings) {
		s.MaxHold = d
		if d <= 0 {
			s.fail(fmt.Errorf("%w: maximum hold %s; it must be positive", ErrInvalid, d))
		}
	}
}

// WithLabel sets a public text of at most 256 bytes that tells others who holds
// the key.
func WithLabel(text string) Option {
	return func(s *Settings) {
		s.Label = text
		if text != "" {
			s.fail(backend.ValidateLabel(text))
		}
	}
}

func (s *Settings) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// ResolveOptions applies the options, nil ones excepted, and checks them, with errors matching
// ErrInvalid. A Locker that cannot honour a setting must refuse it with
// ErrUnsupported, never ignore it.
func ResolveOptions(opts ...Option) (Settings, error) {
	if len(opts) == 0 {
		return Settings{}, nil // without the allocation that options take
	}
	var s Settings
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	if s.err != nil {
		return Settings{}, s.err
	}
	return s, nil
}

// ValidateKey accepts what every backend accepts: 1 to 512 bytes of valid UTF-8
// without control characters. The error matches ErrInvalid.
func ValidateKey(key string) error { return backend.ValidateKey(key) }
