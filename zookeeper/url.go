package zklock

import (
	"context"
	"fmt"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// Opener opens the backend of a URL; it is registered for the schemes zk and zks
// (TLS).
//
//	zk://[user:password@]host1[:port],host2[:port],.../[chroot][?parameters]
//
// The path is the chroot, which must exist. Parameters: prefix, and acl, which is
// open (everything for everybody) or creator (everything for the user of the URL, and
// the default when there is one); for zks also ca, cert and key, which name PEM files.
// Anything else is refused with an error matching ErrInvalid. Where no port is given,
// 2181 is meant, and 2281 for zks. The servers' names are always checked against their
// certificates. The TTL of the Locker is asked for as the session's timeout.
func Opener(ctx context.Context, u *backend.URL, cfg backend.OpenConfig) (backend.Backend, error) {
	o := &Options{
		Lock:     lock.Options{TTL: cfg.TTL, Logger: cfg.Logger},
		Chroot:   strings.TrimSuffix(u.Path, "/"),
		Prefix:   u.Query.String("prefix", defaultPrefix),
		User:     u.User,
		Password: u.Password,
	}
	q := u.Query
	kind := q.OneOf("acl", "default", "open", "creator")
	port := defaultPort
	var err error
	if u.Scheme == "zks" {
		port = securePort
		o.TLS, err = backend.TLSConfig(q.String("ca", ""), q.String("cert", ""), q.String("key", ""))
	}
	if invalid := q.Done(); invalid != nil {
		if u.Scheme == "zk" && q.String("ca", "")+q.String("cert", "")+q.String("key", "") != "" {
			invalid = fmt.Errorf("%w; ca, cert and key are for TLS: write zks:// in place of zk://", invalid)
		}
		return nil, fmt.Errorf("zklock: %w", invalid)
	}
	if err != nil {
		return nil, fmt.Errorf("zklock: %w", err)
	}
	switch kind {
	case "open":
		o.ACL = openACL
	case "creator":
		if u.User == "" {
			return nil, invalid("URL: acl=creator needs a user, as in zk://user:password@host")
		}
		o.ACL = creatorACL
	}
	if o.Prefix == "" {
		return nil, invalid("URL: prefix must not be empty")
	}
	if u.User != "" && u.Password == "" {
		return nil, invalid("URL: a user needs a password, as in zk://user:password@host")
	}
	c, err := newConfig(u.HostsWithPort(port), o)
	if err != nil {
		return nil, err
	}
	c.lookOnly = cfg.LookOnly
	// lock.Open fills in its default, for which the nearest will do.
	b, err := open(ctx, c, cfg.TTL != 0 && cfg.TTL != lock.DefaultTTL)
	if err != nil {
		return nil, fmt.Errorf("%w (%s)", err, u)
	}
	return b, nil
}
