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
	"github.com/mortiselock/lock/internal/backendtest"
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

// ownRequests are those that a session may have sent by itself since then: the keeper's
// reads, which are as many as its rounds at most, pings, and a few that were due.
func ownRequests(since time.Time) int { return 5 + int(time.Since(since)/(longest/12)) }

// calmPair is two clients of a server of their own, and requests for one key, with a TTL
// so long that hardly anything is sent but what the test asks for.
func calmPair(t testing.TB) (server *servertest.Server, b, other *zkBackend, long func() backend.Request) {
	t.Helper()
	server = servertest.ZooKeeper(t)
	opts := Options{Lock: lock.Options{TTL: longest}}
	b, other = backendOn(t, &opts, server), backendOn(t, &opts, server)
	key := backendtest.UniqueKey(t)
	return server, b, other, func() backend.Request { return backend.Request{Key: key, ID: backend.NewID(), TTL: longest} }
}

// TestRequestsPerHold counts what crosses the network. A ping or a read of the keeper
// may be among it.
func TestRequestsPerHold(t *testing.T) {
	t.Parallel()
	const pairs = 50
	server, b, other, long := calmPair(t)
	try := func(b *zkBackend) {
		hold, _ := backendtest.Granted(t, b, long())
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
			backendtest.Granted(t, other, long())
		}
		begun, before := time.Now(), received(t, b, server)
		for range pairs {
			c.round()
		}
		asked := received(t, b, server) - before
		assert.GreaterOrEqual(t, asked, c.each*pairs, c.what)
		assert.LessOrEqual(t, asked, c.each*pairs+ownRequests(begun), c.what)
	}
}

// TestRequestsOfAWaiter: who waits creates, looks, watches itself and the one before
// it, and is granted by the event.
func TestRequestsOfAWaiter(t *testing.T) {
	t.Parallel()
	const rounds = 20
	server, b, other, long := calmPair(t)
	begun, before := time.Now(), received(t, b, server)
	for range rounds {
		hold, _ := backendtest.Granted(t, other, long())
		holder := other.current.find(hold.ID)
		req := long()
		ticket, err := b.Enqueue(t.Context(), req)
		require.NoError(t, err)
		got := make(chan error, 1)
		go func() { _, err := ticket.Wait(t.Context()); got <- err }()
		backendtest.Eventually(t, "it watches the holder and itself", func() bool {
			b.current.mu.Lock()
			defer b.current.mu.Unlock()
			return b.current.watches[ticketPath(ticket)] != nil && b.current.watches[holder.path] != nil
		})
		require.NoError(t, other.Release(t.Context(), hold))
		require.NoError(t, <-got)
		require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
	}
	asked := received(t, b, server) - before
	assert.GreaterOrEqual(t, asked, 5*rounds)
	assert.LessOrEqual(t, asked, 5*rounds+ownRequests(begun))
}
