package redlock

import (
	"cmp"
	"context"
	"fmt"
	"runtime"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// Opener opens the backend of a URL; it is registered for the scheme redlock.
//
//	redlock://[user:password@]host1:port,host2:port,host3:port[/database]
//
// Parameters: prefix, node_timeout, restart_delay, token_memory, new_nodes (true or false),
// tokens (on or off), pool_size, tls (true or false), and with it ca, cert and key,
// which name PEM files. Anything else is refused with an error matching ErrInvalid. User, password, database and
// TLS are those of every node.
func Opener(ctx context.Context, u *backend.URL, cfg backend.OpenConfig) (backend.Backend, error) {
	clients, opts, err := clientsAndOptions(u, cfg)
	if err != nil {
		return nil, err
	}
	b, err := openOn(ctx, clients, true, opts)
	if err != nil {
		return nil, fmt.Errorf("%w (%s)", err, u)
	}
	return b, nil
}

func clientsAndOptions(u *backend.URL, cfg backend.OpenConfig) ([]*goredis.Client, Options, error) {
	fail := func(err error) ([]*goredis.Client, Options, error) {
		return nil, Options{}, fmt.Errorf("redlock: %w", err)
	}
	ttl := cmp.Or(cfg.TTL, lock.DefaultTTL)
	// The times of the nodes come from the TTL.
	if err := guarantees(len(u.Hosts), true, wire.MaxTTL, 0, false).CheckTTL(ttl); err != nil {
		return nil, Options{}, err
	}
	q := u.Query
	opts := Options{
		Lock:          lock.Options{TTL: ttl, Logger: cfg.Logger},
		Prefix:        q.String("prefix", defaultPrefix),
		NodeTimeout:   q.Duration("node_timeout", nodeTimeoutFor(ttl)),
		RestartDelay:  q.Duration("restart_delay", ttl),
		TokenMemory:   q.Duration("token_memory", 0),
		NewNodes:      q.Bool("new_nodes", false),
		WithoutTokens: q.OneOf("tokens", "on", "off") == "off",
	}
	base := goredis.Options{
		Username:      u.User,
		Password:      u.Password,
		PoolSize:      q.Int("pool_size", 2*runtime.GOMAXPROCS(0)), // this package uses one at a time, and one more to listen
		DialTimeout:   dialTimeoutFor(opts.NodeTimeout),
		DialerRetries: 1,
		MaxRetries:    -1,
		ReadTimeout:   opts.NodeTimeout,
		WriteTimeout:  opts.NodeTimeout,

		ContextTimeoutEnabled: true,
		// RESP2 has no push messages, which nothing here uses.
		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	useTLS := q.Bool("tls", false)
	ca, cert, key := q.String("ca", ""), q.String("cert", ""), q.String("key", "")
	if invalid := q.Done(); invalid != nil {
		return fail(invalid)
	}
	var err error
	if base.DB, err = wire.Database(u.Path); err != nil {
		return fail(err)
	}
	addresses := u.HostsWithPort("6379")
	switch {
	case u.User != "" && u.Password == "":
		err = wire.InvalidURL("a user needs a password, as in redlock://user:password@host1,host2,host3")
	case len(addresses) > maxNodes:
		err = wire.InvalidURL(fmt.Sprintf("%d nodes; Redlock takes 1 to %d, best 3 or 5", len(addresses), maxNodes))
	case !useTLS && (ca != "" || cert != "" || key != ""):
		err = wire.InvalidURL("ca, cert and key need tls=true")
	case base.PoolSize <= 0:
		err = wire.InvalidURL("pool_size must be positive")
	case opts.NodeTimeout <= 0:
		err = wire.InvalidURL("node_timeout must be positive")
	case opts.RestartDelay <= 0:
		err = wire.InvalidURL("restart_delay must be positive")
	case opts.Prefix == "":
		err = wire.InvalidURL("prefix must not be empty")
	}
	if err != nil {
		return fail(err)
	}
	if useTLS {
		if base.TLSConfig, err = backend.TLSConfig(ca, cert, key); err != nil {
			return fail(err)
		}
	}
	var clients []*goredis.Client
	for _, address := range addresses {
		one := base
		one.Addr = address
		one.Dialer = wire.QuietDialer(&one)
		clients = append(clients, goredis.NewClient(&one))
	}
	return clients, opts, nil
}
