package redislock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestConformance(t *testing.T) {
	server := servertest.SharedRedis(t)
	cfg := conformanceOfURL(server.URL())
	cfg.Judge = linear.Judge(t)
	cfg.Proxy = &conformance.Proxy{
		Server: server.Addr(),
		Open: func(ctx context.Context, addr string) (lock.Locker, error) {
			return lock.Open(ctx, server.URLAt(addr), &lock.Options{TTL: cfg.TTL})
		},
	}
	cfg.Untouched = func(context.Context) (conformance.Store, error) {
		prefix := "untouched" + backend.NewID().Hex()[:8]
		return conformance.Store{
			Open: func(ctx context.Context) (backend.Backend, error) {
				return backend.DefaultMux.Open(ctx, server.URL()+"?prefix="+prefix, backend.OpenConfig{TTL: time.Second})
			},
			Contents: func(ctx context.Context) (string, error) {
				return redistest.Keys(ctx, t, []*servertest.Server{server}, prefix)
			},
		}, nil
	}
	conformance.Run(t, cfg)
}

func conformanceOfURL(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: time.Second})
		},
		Guarded: guardedOn(url),
		Child:   url,
		TTL:     time.Second,
		Budget:  servertest.Budget(),
	}
}

// guardedOn writes a Redis key in the slot of the lease.
func guardedOn(url string) *conformance.GuardedWrite {
	client := sync.OnceValue(func() goredis.UniversalClient {
		opts, err := goredis.ParseURL(url)
		if err != nil {
			panic(err)
		}
		return goredis.NewClient(opts)
	})
	return &conformance.GuardedWrite{
		Write: func(ctx context.Context, lease lock.Lease, value string) error {
			name := namesOf(defaultPrefix, lease.Key()).bucket + "g:" + lease.Key()
			_, err := GuardedSet.Run(ctx, lease, []string{name}, value)
			return err
		},
		Read: func(ctx context.Context, key string) (string, error) {
			value, err := client().Get(ctx, namesOf(defaultPrefix, key).bucket+"g:"+key).Result()
			if errors.Is(err, goredis.Nil) {
				err = nil
			}
			return value, err
		},
	}
}

func TestAlsoWithCallersClient(t *testing.T) {
	suites.Also(t)
	t.Parallel()
	cfg, client := conformanceOfClient(servertest.SharedRedis(t).URL())
	t.Cleanup(func() { _ = client.Close() })
	cfg.Judge = linear.Judge(t)
	conformance.Run(t, cfg)
}

// conformanceOfClient is about a client of the caller's, with the settings that
// go-redis has by default.
func conformanceOfClient(url string) (conformance.Config, *goredis.Client) {
	opts, err := goredis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	client := goredis.NewClient(opts)
	return conformance.Config{
		Name: "redis, client of the caller",
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return NewBackend(ctx, client, nil)
		},
		Guarded: guardedOn(url),
		Child:   childOfClient + url,
		TTL:     time.Second,
		Budget:  servertest.Budget(),
	}, client
}

const childOfClient = "client "

// childConformance makes the same Configs in the processes that the suite starts.
func childConformance(child string) conformance.Config {
	if url, ok := strings.CutPrefix(child, childOfClient); ok {
		cfg, _ := conformanceOfClient(url)
		return cfg
	}
	return conformanceOfURL(child)
}
