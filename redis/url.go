package redislock

import (
	"context"
	"fmt"
	"runtime"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// Opener opens the backend of a URL; it is registered for the schemes redis and
// rediss (TLS).
//
//	redis://[user:password@]host[:port][/database]
//	redis://[user:password@]sentinel1,sentinel2,sentinel3[/database]?master=NAME
//	redis://[user:password@]member1,member2?cluster=true
//
// Parameters: master, sentinel_user, sentinel_password, cluster, prefix,
// fair, pool_size, dial_timeout, and for rediss also ca, cert and key, which name PEM
// files. Anything else is refused with an error matching ErrInvalid. The
// server's name is always checked against its certificate.
//
// The client is the backend's own. It obeys the deadlines of contexts, and gives
// up on a silent server well before a third of the default TTL.
func Opener(ctx context.Context, u *backend.URL, cfg backend.OpenConfig) (backend.Backend, error) {
	// The times of the client come from the TTL, so a TTL that cannot be kept would
	// look like a server that does not answer.
	if cfg.TTL != 0 {
		if err := guarantees(false).CheckTTL(cfg.TTL); err != nil {
			return nil, err
		}
	}
	parsed, err := readURL(u, cfg.TTL)
	if err != nil {
		return nil, fmt.Errorf("redislock: %w", err)
	}
	opts := parsed.client
	opts.Dialer = wire.QuietDialer(opts.Simple())
	client := goredis.NewUniversalClient(opts)
	var lines []*line
	if opts.MasterName == "" && !opts.IsClusterMode {
		lines = newLines(maxFlights, opts.Simple())
	}
	b, err := newBackend(client, parsed.prefix, lines...)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	b.closesIt = true
	if err := b.checkSettings(ctx, cfg.Logger, cfg.TTL); err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("%w%s (%s)", err,
			wire.HintAboutTLS(err, u.Scheme == "rediss", "write rediss:// in place of redis://", "write redis:// in place of rediss://"), u)
	}
	if parsed.fair {
		return newFair(b), nil
	}
	return b, nil
}

// urlOptions is what a URL says.
type urlOptions struct {
	client *goredis.UniversalOptions
	prefix string // of the keys on the server
	fair   bool
}

// readURL refuses what it does not know.
func readURL(u *backend.URL, ttl time.Duration) (urlOptions, error) {
	q := u.Query
	opts := &goredis.UniversalOptions{
		Username:         u.User,
		Password:         u.Password,
		MasterName:       q.String("master", ""),
		SentinelUsername: q.String("sentinel_user", ""),
		SentinelPassword: q.String("sentinel_password", ""),
		IsClusterMode:    q.Bool("cluster", false),
		PoolSize:         q.Int("pool_size", 10*runtime.GOMAXPROCS(0)), // the default of go-redis
		DialTimeout:      q.Duration("dial_timeout", requestTimeout(ttl)),
		DialerRetries:    1,
		MaxRetries:       -1, // of what is not a script; those are sent again by this package
		ReadTimeout:      requestTimeout(ttl),
		WriteTimeout:     requestTimeout(ttl),

		ContextTimeoutEnabled: true,
		// RESP2 has no push messages, which nothing here uses.
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	parsed := urlOptions{client: opts, prefix: q.String("prefix", defaultPrefix), fair: q.Bool("fair", false)}
	var err error
	if u.Scheme == "rediss" {
		opts.TLSConfig, err = backend.TLSConfig(q.String("ca", ""), q.String("cert", ""), q.String("key", ""))
	}
	if invalid := q.Done(); invalid != nil {
		if q.String("ca", "")+q.String("cert", "")+q.String("key", "") != "" && u.Scheme == "redis" {
			invalid = fmt.Errorf("%w; ca, cert and key are for TLS: write rediss:// in place of redis://", invalid)
		}
		return urlOptions{}, invalid
	}
	if err != nil {
		return urlOptions{}, err
	}

	port := "6379"
	if opts.MasterName != "" {
		port = "26379"
	}
	opts.Addrs = u.HostsWithPort(port)
	if opts.DB, err = wire.Database(u.Path); err != nil {
		return urlOptions{}, err
	}
	switch {
	case u.User != "" && u.Password == "":
		err = wire.InvalidURL("a user needs a password, as in redis://user:password@host")
	case opts.MasterName != "" && opts.IsClusterMode:
		err = wire.InvalidURL("master and cluster=true exclude each other")
	case opts.MasterName == "" && (opts.SentinelUsername != "" || opts.SentinelPassword != ""):
		err = wire.InvalidURL("sentinel_user and sentinel_password need master=NAME")
	case opts.SentinelUsername != "" && opts.SentinelPassword == "":
		err = wire.InvalidURL("sentinel_user needs sentinel_password")
	case len(opts.Addrs) > 1 && opts.MasterName == "" && !opts.IsClusterMode:
		err = wire.InvalidURL("several hosts need master=NAME (they are sentinels) or cluster=true (they are members of one Cluster)")
	case opts.IsClusterMode && opts.DB != 0:
		err = wire.InvalidURL("a Cluster has database 0 only")
	case opts.PoolSize <= 0:
		err = wire.InvalidURL("pool_size must be positive")
	case opts.DialTimeout <= 0:
		err = wire.InvalidURL("dial_timeout must be positive")
	case parsed.prefix == "":
		err = wire.InvalidURL("prefix must not be empty")
	}
	if err != nil {
		return urlOptions{}, err
	}
	return parsed, nil
}

// requestTimeout is below a third of the TTL, so that a silent server costs one
// renewal and not the lease.
func requestTimeout(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return 3 * time.Second
	}
	return min(3*time.Second, ttl/4)
}
