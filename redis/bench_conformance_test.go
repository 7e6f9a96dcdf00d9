package redislock_test

import (
	"context"
	"testing"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func BenchmarkLocker(b *testing.B) {
	server := servertest.SharedRedis(b)
	conformance.Bench(b, conformance.Config{OpenBackend: func(ctx context.Context) (backend.Backend, error) {
		return backend.DefaultMux.Open(ctx, server.URL(), backend.OpenConfig{})
	}})
}
