package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servertest.SharedEtcd(t)
	cfg := conformanceOfURL(server.URL())
	cfg.Judge = linear.Judge(t)
	cfg.Proxy = &conformance.Proxy{
		Server: server.Addr(),
		Open: func(ctx context.Context, addr string) (lock.Locker, error) {
			return lock.Open(ctx, server.URLAt(addr), &lock.Options{TTL: cfg.TTL})
		},
	}
	conformance.Run(t, cfg)
}

func TestAlsoOnCurrentRelease(t *testing.T) {
	suites.Also(t)
	t.Parallel()
	cfg := conformanceOfURL(servertest.SharedEtcdCurrent(t).URL())
	cfg.Judge = linear.Judge(t)
	conformance.Run(t, cfg)
}

// conformanceOfURL also makes the Configs in the processes that the suite starts.
func conformanceOfURL(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{})
		},
		Untouched: func(context.Context) (conformance.Store, error) {
			other := strings.TrimSuffix(url, "/") + "/untouched-" + backend.NewID().Hex()
			return conformance.Store{
				Open: func(ctx context.Context) (backend.Backend, error) {
					return backend.DefaultMux.Open(ctx, other, backend.OpenConfig{})
				},
				Contents: func(ctx context.Context) (string, error) { return contentsOf(ctx, other) },
			}, nil
		},
		EndSession: func(ctx context.Context, key string) error { return endSession(ctx, url, key) },
		Guarded:    guardedWrite(url),
		Child:      url,
		TTL:        2 * time.Second,
		Budget:     servertest.Budget(),
	}
}

// adminOf is a client of the servers, with the prefix of the URL.
func adminOf(url string) (*etcdBackend, error) {
	u, err := backend.ParseURL(url)
	if err != nil {
		return nil, err
	}
	conf, prefix, err := clientConfig(u)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(conf)
	if err != nil {
		return nil, err
	}
	b, err := newBackend(client, prefix)
	if err != nil {
		return nil, err
	}
	b.closesIt = true
	return b, nil
}

// contentsOf is everything below the prefix of the URL.
func contentsOf(ctx context.Context, url string) (string, error) {
	b, err := adminOf(url)
	if err != nil {
		return "", err
	}
	defer b.Close()
	all, err := b.client.Get(ctx, b.prefix, clientv3.WithPrefix())
	if err != nil {
		return "", err
	}
	return fmt.Sprint(all.Kvs), nil
}

// endSession revokes the lease of the last place in the queue.
func endSession(ctx context.Context, url, key string) error {
	b, err := adminOf(url)
	if err != nil {
		return err
	}
	defer b.Close()
	kvs, err := b.places(ctx, namesOf(b.prefix, key))
	if err != nil {
		return err
	}
	if len(kvs) == 0 {
		return fmt.Errorf("nobody waits for %q", key)
	}
	_, err = b.client.Revoke(ctx, clientv3.LeaseID(kvs[len(kvs)-1].Lease))
	return err
}

func guardedWrite(url string) *conformance.GuardedWrite {
	return &conformance.GuardedWrite{
		Write: func(ctx context.Context, lease lock.Lease, value string) error {
			_, err := Txn(ctx, lease).Then(clientv3.OpPut("guarded/"+lease.Key(), value)).Commit()
			return err
		},
		Read: func(ctx context.Context, key string) (string, error) {
			b, err := adminOf(url)
			if err != nil {
				return "", err
			}
			defer b.Close()
			resp, err := b.client.Get(ctx, "guarded/"+key)
			if err != nil || len(resp.Kvs) == 0 {
				return "", err
			}
			return string(resp.Kvs[0].Value), nil
		},
	}
}
