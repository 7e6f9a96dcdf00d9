package redislock

import (
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Main(m, func() { conformance.Child(childConformance) })
}

func backendOn(t testing.TB, c goredis.UniversalClient) *redisBackend {
	t.Helper()
	b := backendtest.Opened(t, func() (backend.Backend, error) { return NewBackend(t.Context(), c, nil) })
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*redisBackend)
}

const ttl = redistest.TTL

// shared is a backend on the shared server.
func shared(t testing.TB) (*redisBackend, *goredis.Client) {
	t.Helper()
	c := redistest.Client(t, servertest.SharedRedis(t))
	return backendOn(t, c), c
}

func ownedRequest(key, owner string, ttl time.Duration) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), Owner: owner, TTL: ttl}
}

// raw is the record as it is stored, and when it expires.
func raw(t testing.TB, c goredis.UniversalClient, key string) (value string, expires time.Duration) {
	t.Helper()
	n := namesOf(defaultPrefix, key)
	value, err := c.Get(t.Context(), n.record()).Result()
	if errors.Is(err, goredis.Nil) {
		return "", 0
	}
	require.NoError(t, err)
	expires, err = c.PExpireTime(t.Context(), n.record()).Result()
	require.NoError(t, err)
	return value, expires
}
