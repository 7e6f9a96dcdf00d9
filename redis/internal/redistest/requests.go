package redistest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// TTL is that of the requests.
const TTL = 10 * time.Second

// Client is a client with the settings of a user who has not thought about
// them.
func Client(t testing.TB, s *servertest.Server) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), Password: s.Password()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Request is one without an owner.
func Request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: TTL}
}

// Brief is a request with a TTL of its own.
func Brief(key string, ttl time.Duration) backend.Request {
	req := Request(key)
	req.TTL = ttl
	return req
}

// Keys are the names of the keys with the prefix on the servers.
func Keys(ctx context.Context, t testing.TB, servers []*servertest.Server, prefix string) (string, error) {
	var text string
	for _, s := range servers {
		keys, err := Client(t, s).Keys(ctx, prefix+"*").Result()
		if err != nil {
			return "", err
		}
		slices.Sort(keys)
		text += s.Addr() + ": " + strings.Join(keys, " ") + "\n"
	}
	return text, nil
}

// Expiry looks at a lease from now on. What it returns waits for its end, and requires
// that it was at the deadline, give or take what a busy machine adds.
func Expiry(t testing.TB, lease lock.Lease) (ended func()) {
	t.Helper()
	at := make(chan time.Time, 1)
	context.AfterFunc(lease.Context(), func() { at <- time.Now() })
	return func() {
		t.Helper()
		end := <-at
		deadline, _ := lease.Deadline()
		require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrExpired)
		require.Greater(t, end.Sub(deadline), -100*time.Millisecond, "given up before its deadline")
		require.Less(t, end.Sub(deadline), 10*time.Second, "after its deadline")
	}
}

// ScriptCalls is how many scripts the server has run.
func ScriptCalls(t testing.TB, c *goredis.Client) int {
	t.Helper()
	text, err := c.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	total := 0
	for _, name := range []string{"evalsha", "eval"} {
		if _, after, ok := strings.Cut(text, "cmdstat_"+name+":calls="); ok {
			var calls int
			_, err := fmt.Sscanf(after, "%d", &calls)
			require.NoError(t, err)
			total += calls
		}
	}
	return total
}
