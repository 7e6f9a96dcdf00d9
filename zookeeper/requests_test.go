package zklock

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// received is how many requests of the backend's session the server has received.
func received(t testing.TB, b *zkBackend, server *servertest.Server) int {
	t.Helper()
	conn := regexp.MustCompile(fmt.Sprintf(`recved=(\d+),sent=\d+,sid=%#x,`, b.current.conn.SessionID()))
	found := conn.FindStringSubmatch(word(t, server, "cons"))
	require.NotNil(t, found, "the server lists the session")
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// calmPair is two clients of a server of their own, and requests for one key, with a TTL
// so long that hardly anything is sent but what the test asks for.
func calmPair(t testing.TB) (server *servertest.Server, b, other *zkBackend, long func() backend.Request) {
	t.Helper()
	const ttl = 30 * time.Second
	server = servertest.ZooKeeper(t)
	opts := Options{Lock: lock.Options{TTL: ttl}}
	b, other = backendOn(t, &opts, server), backendOn(t, &opts, server)
	key := uniqueKey(t)
	return server, b, other, func() backend.Request { return backend.Request{Key: key, ID: backend.NewID(), TTL: ttl} }
}

// TestRequestsPerHold counts what crosses the network. A ping or a read of the keeper
// may be among it.
func TestRequestsPerHold(t *testing.T) {
	t.Parallel()
	const pairs, few = 50, 5
	server, b, other, long := calmPair(t)
	try := func(b *zkBackend) {
		hold, _ := granted(t, b, long())
		require.NoError(t, b.Release(t.Context(), hold))
	}
	acquire := func(b *zkBackend) {
		req := long()
		ticket, err := b.Enqueue(t.Context(), req)
		require.NoError(t, err)
		_, err = ticket.Wait(t.Context())
		require.NoError(t, err)
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	}
	try(other) // makes the node of the key
	for _, c := range []struct {
		what  string
		each  int
		round func()
	}{
		{"acquire: creates and deletes", 2, func() { acquire(b) }},
		{"try: the same, since the key is as it was left", 2, func() { try(b) }},
		{"try where others come between: looks first", 3, func() { acquire(other); try(b) }},
		{"try where nobody comes between any more", 2, func() { try(b) }},
		{"refused: looks, catches up, and reads who holds", 3, func() {
			_, err := b.Try(t.Context(), long())
			require.ErrorIs(t, err, backend.ErrHeld)
		}},
	} {
		if c.each == 3 && c.what[0] == 'r' {
			granted(t, other, long())
		}
		before := received(t, b, server)
		for range pairs {
			c.round()
		}
		assert.InDelta(t, c.each*pairs, received(t, b, server)-before, few, c.what)
	}
}

// TestRequestsOfAWaiter: who waits creates, looks, watches itself and the one before
// it, and is granted by the event.
func TestRequestsOfAWaiter(t *testing.T) {
	t.Parallel()
	const rounds, few = 20, 5
	server, b, other, long := calmPair(t)
	before := received(t, b, server)
	for range rounds {
		hold, _ := granted(t, other, long())
		req := long()
		ticket, err := b.Enqueue(t.Context(), req)
		require.NoError(t, err)
		got := make(chan error, 1)
		go func() { _, err := ticket.Wait(t.Context()); got <- err }()
		eventually(t, "it watches the holder and itself", func() bool {
			b.current.mu.Lock()
			defer b.current.mu.Unlock()
			b.current.sweepWatches()
			return len(b.current.watches) == 2
		})
		require.NoError(t, other.Release(t.Context(), hold))
		require.NoError(t, <-got)
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	}
	assert.InDelta(t, 5*rounds, received(t, b, server)-before, few)
}
