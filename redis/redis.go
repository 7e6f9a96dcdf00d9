package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/redis/internal/push"
	"github.com/mortiselock/lock/redis/internal/wire"
)

func init() {
	backend.DefaultMux.Register("redis", Opener)
	backend.DefaultMux.Register("rediss", Opener)
	backend.DefaultMux.Declare("redis://", guarantees(true))
	backend.DefaultMux.Declare("redis://?fair=true", fairly(guarantees(true)))
}

// Options are the settings of a Redis backend. The zero value of each field, and
// a nil pointer, mean the default.
type Options struct {
	// Lock holds the settings of the Locker. Its Logger also receives the
	// warnings about the server's settings.
	Lock lock.Options

	// Prefix begins every Redis key and channel, so that several applications
	// can share a server: at most 128 bytes of valid UTF-8 without control
	// characters. Lockers exclude each other only under the same prefix and the
	// same database. Default: "lock:".
	Prefix string

	// Fair has those who wait stand in a queue on the server, and served first
	// come first served across clients: one place for each Locker that waits for
	// the key, and first come first served within it. TryAcquire is refused while
	// somebody waits. A waiter that dies delays the others by at most 1.5 s. All
	// Lockers of a key have to be fair: one that is not overtakes.
	Fair bool
}

// New returns a [lock.Client] on a client of the caller's, which it neither changes nor
// closes: a *Client, also one for Sentinel, or a *ClusterClient. A Ring is
// refused with ErrUnsupported.
//
// New asks the server for a sign of life and for its settings, bounded by ctx. A
// refused password is ErrPermanent; a server that cannot be reached, is loading
// or is a replica is ErrUnavailable. Doubtful settings are logged.
//
// Set ContextTimeoutEnabled in the client's options, or a ReadTimeout below a
// third of the TTL: go-redis otherwise lets a command outlive its context.
func New(ctx context.Context, client goredis.UniversalClient, opts *Options) (*lock.Client, error) {
	b, err := NewBackend(ctx, client, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
}

// NewBackend is [New] for those who put something between the Locker and the
// backend. Closing the backend ends its subscription and leaves the client
// open.
func NewBackend(ctx context.Context, client goredis.UniversalClient, opts *Options) (backend.Backend, error) {
	opts = construct.Options(opts)
	b, err := newBackend(client, opts.Prefix)
	if err != nil {
		return nil, err
	}
	ttl := opts.Lock.TTL
	if ttl <= 0 {
		ttl = lock.DefaultTTL
	}
	if err := b.checkSettings(ctx, construct.Logger(opts.Lock.Logger), ttl); err != nil {
		_ = b.Close()
		return nil, err
	}
	if opts.Fair {
		return newFair(b), nil
	}
	return b, nil
}

// redisBackend implements backend.Backend and the abilities that are named below.
type redisBackend struct {
	client     goredis.UniversalClient
	closesIt   bool
	cluster    bool
	prefix     string
	buckets    *buckets
	clock      backend.Clock
	guarantees backend.Guarantees
	together   *dispatcher // nil in a Cluster, where one member must not hold up the others
	lines      []*line     // those of together
	abandoned  abandonedOnes
	hub        *push.Hub
	part       int // of those who watch a key
	holders    wire.HolderTexts
}

var (
	_ backend.Backend       = (*redisBackend)(nil)
	_ backend.Watcher       = (*redisBackend)(nil)
	_ backend.ReleaseTeller = (*redisBackend)(nil)
	_ backend.HandOverer    = (*redisBackend)(nil)
	_ backend.BatchRenewer  = (*redisBackend)(nil)
	_ backend.Partitioner   = (*redisBackend)(nil)
	_ backend.Inspector     = (*redisBackend)(nil)
	_ backend.ForceReleaser = (*redisBackend)(nil)
	_ backend.Revoker       = (*redisBackend)(nil)
	_ backend.Lister        = (*redisBackend)(nil)
	_ backend.FloorRaiser   = (*redisBackend)(nil)
	_ backend.TokenTeller   = (*redisBackend)(nil)
	_ backend.Interruptible = (*redisBackend)(nil)
)

func newBackend(client goredis.UniversalClient, prefix string, lines ...*line) (*redisBackend, error) {
	missing := client == nil
	switch c := client.(type) {
	case *goredis.Client:
		missing = c == nil
	case *goredis.ClusterClient:
		missing = c == nil
	case *goredis.Ring:
		return nil, fmt.Errorf("redislock: %w: a Ring gives a key to another server when one is down; use a Client or a ClusterClient", backend.ErrUnsupported)
	}
	if missing {
		return nil, fmt.Errorf("redislock: %w: the client is nil", backend.ErrInvalid)
	}
	if prefix == "" {
		prefix = defaultPrefix
	}
	if err := wire.CheckPrefix(prefix); err != nil {
		return nil, fmt.Errorf("redislock: %w", err)
	}
	if emptyTag(prefix) {
		return nil, fmt.Errorf("redislock: %w: the prefix begins its first hash tag with {}, so that a Cluster would keep what belongs together in different slots; put a name between the braces", backend.ErrInvalid)
	}
	b := &redisBackend{client: client, prefix: prefix, buckets: newBuckets(prefix), part: rand.IntN(wire.Parts), clock: backend.SystemClock()}
	_, b.cluster = client.(*goredis.ClusterClient)
	b.hub = push.New(func(ctx context.Context) *goredis.PubSub { return client.Subscribe(ctx) })
	if c, ok := client.(*goredis.Client); ok {
		b.together = newDispatcher(c, b.clock, lines)
		b.lines = lines
	}
	b.guarantees = guarantees(false)
	return b, nil
}

// Guarantees says what is promised. Holds survive a restart of the server only
// if it kept an append-only file when the backend was opened.
func (b *redisBackend) Guarantees() backend.Guarantees { return b.guarantees.Clone() }

// Interruptible implements backend.Interruptible. A client of the caller's can't be: what
// go-redis reads is ended by a deadline only, and its pool does not tell the connection.
func (b *redisBackend) Interruptible() bool { return len(b.lines) > 0 }

// Close ends the subscription, and closes the client if it was opened by URL.
func (b *redisBackend) Close() error {
	b.hub.Close()
	var err error
	if b.closesIt {
		err = b.client.Close() // which also ends what is under way
	}
	var closing sync.WaitGroup // each may wait for a server that hangs
	for _, l := range b.lines {
		closing.Go(l.close)
	}
	if b.together != nil {
		closing.Go(b.together.close)
	}
	closing.Wait()
	if err != nil {
		return fmt.Errorf("redislock: close the client: %w", err)
	}
	return nil
}
