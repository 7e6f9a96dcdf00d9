// Package peers runs the conformance suite on locks that were not written here,
// each through an adapter of its own file. What a library never claimed is not
// counted against it.
//
// It is a module of its own, so that none of these libraries comes to those who use
// the lock package.
package peers

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// Peer is a lock of somebody else's.
type Peer struct {
	Name    string // import path
	Version string
	Server  string // "redis" or "etcd"
	// Adapter says what the adapter adds, since no two interfaces are alike.
	Adapter string
	// Deviations are those of the Config: rules, or subjects of rules, about what the
	// library does not promise anywhere, each with what its documentation says instead.
	Deviations map[string]string
	// Breaks says of each rule that the library breaks what happens, and what its
	// documentation promises of it. The page has no break without it.
	Breaks map[string]string
	// Record is where the library keeps the hold of the key %s on its server: a key of
	// Redis, or a prefix of etcd.
	Record string

	// Guarantees are what the library's documentation promises.
	Guarantees backend.Guarantees
	TTL        time.Duration

	open func(ctx context.Context, addr string, ttl time.Duration) (lock.Locker, error)
}

// Config is the peer as the suite sees it, on the server at addr.
func (p Peer) Config(addr string) conformance.Config {
	cfg := conformance.Config{
		Name: p.Name, Guarantees: &p.Guarantees, TTL: p.TTL, Deviations: p.Deviations,
		Proxy: &conformance.Proxy{
			Server: addr,
			Open:   func(ctx context.Context, addr string) (lock.Locker, error) { return p.open(ctx, addr, p.TTL) },
		},
		Child:  p.Name + " " + addr,
		Remove: func(ctx context.Context, key string) error { return p.remove(ctx, addr, key) },
	}
	if !p.Guarantees.WithoutRenewal {
		cfg.Kill = conformance.Abandon
	}
	return cfg
}

// ConfigOf is the Config of another process, by its Config.Child.
func ConfigOf(child string) conformance.Config {
	name, addr, _ := strings.Cut(child, " ")
	for _, p := range All() {
		if p.Name == name {
			return p.Config(addr)
		}
	}
	panic(fmt.Sprintf("no peer is called %q", name))
}

// remove deletes a record as an operator would, behind the back of its holder.
func (p Peer) remove(ctx context.Context, addr, key string) error {
	if p.Server == "redis" {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		return rdb.Del(ctx, fmt.Sprintf(p.Record, key)).Err()
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Delete(ctx, fmt.Sprintf(p.Record, url.PathEscape(key)), clientv3.WithPrefix())
	return err
}
