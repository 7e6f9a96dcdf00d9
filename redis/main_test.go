package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// The run fails if a goroutine is left when every test has closed what it
// opened.
func TestMain(m *testing.M) {
	goredis.SetLogger(quiet{}) // it tells of every connection that a test breaks
	conformance.Child(childConformance)
	goleak.VerifyTestMain(patient{servertest.StopAfter(m)})
}

// patient lets clients that were closed find it out: go-redis asks a dead server for a
// sign of life once a second, and looks only then.
type patient struct{ servertest.Runner }

func (p patient) Run() int {
	code := p.Runner.Run()
	for end := time.Now().Add(20 * time.Second); goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

const ttl = 10 * time.Second

var keys atomic.Int64

// uniqueKey is a key that no other test uses.
func uniqueKey(t testing.TB) string {
	return fmt.Sprintf("%s/%d/%s", t.Name(), keys.Add(1), backend.NewID().Hex()[:8])
}

// clientOf is a client with the settings of a user who has not thought about
// them.
func clientOf(t testing.TB, s *servertest.Server) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Password: s.Password()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func backendOn(t testing.TB, c goredis.UniversalClient) *redisBackend {
	t.Helper()
	b, err := NewBackend(t.Context(), c, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*redisBackend)
}

// shared is a backend on the shared server.
func shared(t testing.TB) (*redisBackend, *goredis.Client) {
	t.Helper()
	c := clientOf(t, servertest.SharedRedis(t))
	return backendOn(t, c), c
}

func request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: ttl}
}

func ownedRequest(key, owner string, ttl time.Duration) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), Owner: owner, TTL: ttl}
}

// granted asks for the hold and requires it.
func granted(t testing.TB, b backend.Backend, req backend.Request) (backend.Hold, backend.Grant) {
	t.Helper()
	g, err := b.Try(t.Context(), req)
	require.NoError(t, err)
	hold := backend.HoldOf(req)
	hold.Token = g.Token
	return hold, g
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

// eventually waits for something that has no signal. It asks less and less often.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		require.True(t, time.Now().Before(end), "never: %s", what)
		time.Sleep(pause)
	}
}

func short(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
