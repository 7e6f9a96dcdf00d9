package redislock_test

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
	redislock "github.com/mortiselock/lock/redis"
)

func TestConformance(t *testing.T) {
	server := servertest.SharedRedis(t)
	conformance.Run(t, conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, server.URL(), backend.OpenConfig{TTL: time.Second})
		},
		TTL:    time.Second,
		Budget: 20 * time.Second,
	})
}

// A client of the caller's, with the settings that go-redis has by default.
func TestConformanceOfClient(t *testing.T) {
	server := servertest.SharedRedis(t)
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Password: server.Password()})
	t.Cleanup(func() { _ = client.Close() })
	conformance.Run(t, conformance.Config{
		Name: "redis, client of the caller",
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return redislock.NewBackend(ctx, client, nil)
		},
		TTL:    time.Second,
		Budget: 20 * time.Second,
	})
}
