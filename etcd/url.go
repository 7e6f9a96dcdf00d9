package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/mortiselock/lock/backend"
)

// Opener opens the backend of a URL; it is registered for the schemes etcd and
// etcds (TLS).
//
//	etcd://[user:password@]host[:port],host2[:port]/prefix
//
// The hosts are members of one cluster; port 2379 is meant where none is given.
// The path is the prefix of the keys; without one it is "lock/". Parameters, for etcds
// only: ca, cert and key, which name PEM files. Anything else is refused with an error
// matching ErrInvalid. The servers' names are always checked against their certificates.
//
// The client is the backend's own. It logs nothing, and notices within 13 seconds
// that a member stands still.
func Opener(ctx context.Context, u *backend.URL, cfg backend.OpenConfig) (backend.Backend, error) {
	if cfg.TTL != 0 {
		if err := guarantees(grain).CheckTTL(cfg.TTL); err != nil {
			return nil, err
		}
	}
	conf, prefix, err := clientConfig(u)
	if err != nil {
		return nil, err
	}
	client, err := openClient(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("etcdlock: open: %w (%s)", harmless(ctx, err), u)
	}
	b, err := newBackend(client, prefix)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	b.closesIt, b.tls = true, conf.TLS
	if err := b.checkServers(ctx, cfg.Logger); err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("%w (%s)", err, u)
	}
	return b, nil
}

// openClient makes the client, which asks for a token at once if it has a
// password, bounded by its dial timeout alone. As it would try that again and again
// while it is refused the connection, another client goes before it.
func openClient(ctx context.Context, conf clientv3.Config) (*clientv3.Client, error) {
	if deadline, ok := ctx.Deadline(); ok {
		conf.DialTimeout = max(min(conf.DialTimeout, time.Until(deadline)), time.Millisecond)
	}
	if conf.Username == "" {
		return clientv3.New(conf)
	}
	plain := conf
	plain.Username, plain.Password = "", ""
	err := withClient(plain, func(stranger *clientv3.Client) error { return whyUnreachable(ctx, stranger, conf.TLS, whyLimit) })
	if err != nil {
		return nil, err
	}
	conf.DialOptions = append(conf.DialOptions, grpc.WithChainUnaryInterceptor(authenticateBeside(plain)))
	return clientv3.New(conf)
}

// authenticateBeside gives the password on a connection of its own, which nothing was
// sent on. The client library sends its token along, and etcd 3.4 refuses whoever asks for
// a new token while the one that is sent along has expired: for ever.
func authenticateBeside(plain clientv3.Config) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method != pb.Auth_Authenticate_FullMethodName {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		return withClient(plain, func(stranger *clientv3.Client) error {
			return stranger.ActiveConnection().Invoke(ctx, method, req, reply)
		})
	}
}

func withClient(conf clientv3.Config, f func(c *clientv3.Client) error) error {
	c, err := clientv3.New(conf)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c)
}

// clientConfig reads the URL.
func clientConfig(u *backend.URL) (conf clientv3.Config, prefix string, err error) {
	q := u.Query
	conf = clientv3.Config{
		Username: u.User,
		Password: u.Password,

		DialTimeout:          openLimit,
		DialKeepAliveTime:    10 * time.Second, // gRPC allows no less
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(),
	}
	scheme := "http://"
	if u.Scheme == "etcds" {
		scheme = "https://"
		conf.TLS, err = backend.TLSConfig(q.String("ca", ""), q.String("cert", ""), q.String("key", ""))
	}
	if invalid := q.Done(); invalid != nil {
		if q.String("ca", "")+q.String("cert", "")+q.String("key", "") != "" && u.Scheme == "etcd" {
			invalid = fmt.Errorf("%w; ca, cert and key are for TLS: write etcds:// in place of etcd://", invalid)
		}
		return conf, "", fmt.Errorf("etcdlock: %w", invalid)
	}
	if err != nil {
		return conf, "", fmt.Errorf("etcdlock: %w", err)
	}
	for _, host := range u.HostsWithPort("2379") {
		conf.Endpoints = append(conf.Endpoints, scheme+host)
	}
	prefix = strings.TrimPrefix(u.Path, "/")
	switch {
	case (u.User == "") != (u.Password == ""):
		err = invalidURL("user and password are given together, as in etcd://user:password@host")
	case u.Path != "" && u.Path[0] != '/':
		// It would be a prefix on localhost.
		err = invalidURL("two slashes come before the host, as in etcd://host:2379/prefix")
	case strings.HasPrefix(prefix, "/"):
		err = invalidURL("the prefix begins after one slash, as in etcd://host:2379/prefix")
	}
	return conf, prefix, err
}

func invalidURL(text string) error {
	return fmt.Errorf("etcdlock: %w: URL: %s", backend.ErrInvalid, text)
}
