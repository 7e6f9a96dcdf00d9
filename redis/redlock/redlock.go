package redlock

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/redis/internal/push"
	"github.com/mortiselock/lock/redis/internal/wire"
)

func init() {
	backend.DefaultMux.Register("redlock", Opener)
	backend.DefaultMux.Declare("redlock://", guarantees(5, true, lock.DefaultTTL, 0, true))
}

const (
	defaultPrefix = "redlock:"
	openTimeout   = 5 * time.Second // for a majority to answer at the opening
	openGrace     = time.Second     // for the others then
)

// dialTimeoutFor is how long a connection may take, TLS included. No request waits for it; but a
// server that does not answer a handshake is to be told from one that is away, at the opening.
func dialTimeoutFor(nodeTimeout time.Duration) time.Duration {
	return max(time.Second, min(nodeTimeout, openTimeout/2))
}

// nodeTimeoutFor is far below the usual TTLs, and long enough for the short ones.
func nodeTimeoutFor(ttl time.Duration) time.Duration { return min(ttl/5, 500*time.Millisecond) }

// Options are the settings of a Redlock backend. The zero value of each
// field, and a nil pointer, mean the default.
type Options struct {
	// Lock holds the settings of the Locker. Its Logger also receives the
	// warnings about the nodes.
	Lock lock.Options

	// Prefix begins every Redis key and channel: at most 128 bytes of valid UTF-8 without
	// control characters. Lockers exclude each other only under the same prefix,
	// and on the same nodes. Default: "redlock:".
	Prefix string

	// NodeTimeout is how long a node has to answer before it no longer counts for
	// a request; it is never more than a third of the TTL of the request. A node
	// that does not answer delays a request by at most this long, and only if the
	// others can't decide without it. More than a third of the default TTL is refused
	// with ErrInvalid. Default: a fifth of the default TTL, at most 500 ms.
	NodeTimeout time.Duration

	// RestartDelay is for how long a node that has lost its data grants nothing,
	// on its own clock: at least the longest TTL that any Locker on these nodes
	// uses. A longer TTL is refused with ErrInvalid, since two such nodes could give
	// the key to a second holder. The nodes remember the longest delay of all Lockers,
	// and one that is opened later waits for that; one that was open before does not
	// hear of it, which the log of the new one says. Default: the default TTL.
	RestartDelay time.Duration

	// NewNodes says that nobody has used these nodes under this prefix yet, so that
	// they need not be without data for the restart delay before they grant. It is
	// for the first opening of a set: it has no effect once a node that can be
	// reached has complete data, and lets a second holder in if every such node has
	// lost it while a key was held.
	NewNodes bool

	// TokenMemory is for how long a node remembers the last token of a key after the last
	// grant or renewal: at least twice the restart delay, and the same in every Locker on
	// these nodes. A node keeps about 200 bytes for each key that was used within that
	// time. Afterwards tokens go on from the nodes' clocks, and rise as long as these are
	// not apart, nor set back, by as much. Default: max(24 h, 10 TTL).
	TokenMemory time.Duration

	// WithoutTokens saves the nodes the work for tokens, and the second round trip of an
	// acquisition whose token is not accepted with the first. Token is 0
	// then, and the guarantees say so. Lockers on the same nodes should agree.
	WithoutTokens bool
}

// New returns a [lock.Client] on one to seven independent Redis servers, by the
// algorithm of the Redis page on distributed locks ("Redlock"): a lease is granted
// and renewed by a majority of all of them, so that it survives the loss of a
// minority. Use an odd number, on machines that don't fail together. An even one is
// accepted, and warned about: it needs more votes and tolerates no more failures.
//
// The clients are the caller's: they are neither changed nor closed, and each is
// for one server that is neither a replica nor a member of a Cluster. The same
// server under two addresses is refused with ErrInvalid.
//
// New asks every node for its settings, bounded by ctx and by five seconds, and does not
// wait long for a minority. A
// node that refuses for good (password, replica) is ErrPermanent. Nodes that can't be
// reached are logged while a majority can, and ErrUnavailable otherwise.
func New(ctx context.Context, clients []goredis.UniversalClient, opts *Options) (*lock.Client, error) {
	b, err := NewBackend(ctx, clients, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
}

// NewBackend is [New] for those who put something between the Locker
// and the backend. Closing the backend leaves the clients open.
func NewBackend(ctx context.Context, clients []goredis.UniversalClient, opts *Options) (backend.Backend, error) {
	opts = construct.Options(opts)
	if len(clients) == 0 || len(clients) > maxNodes {
		return nil, fmt.Errorf("redlock: %w: %d nodes; Redlock takes 1 to %d, best 3 or 5", backend.ErrInvalid, len(clients), maxNodes)
	}
	var nodes []*goredis.Client
	for i, c := range clients {
		switch client := c.(type) {
		case *goredis.Client:
			if client == nil {
				return nil, fmt.Errorf("redlock: %w: client %d is nil", backend.ErrInvalid, i+1)
			}
			if client.Options().Addr == "FailoverClient" {
				return nil, fmt.Errorf("redlock: %w: client %d is for Sentinel; a node that fails over to a replica forgets votes, so each needs a client of its own server", backend.ErrUnsupported, i+1)
			}
			nodes = append(nodes, client)
		case nil:
			return nil, fmt.Errorf("redlock: %w: client %d is nil", backend.ErrInvalid, i+1)
		default:
			return nil, fmt.Errorf("redlock: %w: client %d is a %T; Redlock needs one *redis.Client for each server", backend.ErrUnsupported, i+1, c)
		}
	}
	return openOn(ctx, nodes, false, *opts)
}

// openOn takes over the clients if owned is true.
func openOn(ctx context.Context, clients []*goredis.Client, owned bool, opts Options) (backend.Backend, error) {
	b, err := newMajority(clients, owned, opts)
	if err == nil {
		err = b.checkNodes(ctx, clients, opts)
		if err != nil {
			_ = b.Close()
		}
	} else if owned {
		closeAll(clients)
	}
	if err != nil {
		return nil, err
	}
	if b.tokens {
		return majorityWithTokens{b}, nil
	}
	return b, nil
}

// leastTokenMemory is how long a token must be remembered: until its hold has ended, which
// is within the longest TTL after the last renewal, and then for as long as a node that
// has lost its data grants nothing, so that the clocks may be as far apart as there.
func leastTokenMemory(restartDelay time.Duration) time.Duration { return 2 * restartDelay }

func closeAll(clients []*goredis.Client) {
	for _, c := range clients {
		_ = c.Close()
	}
}

// majority implements backend.Backend, Watcher, ReleaseTeller, Inspector and Lister.
type majority struct {
	nodes        []*node
	quorum       int
	prefix       string
	mark         string
	part         int // of those who watch a key
	nodeTimeout  time.Duration
	restartDelay time.Duration
	longestDelay time.Duration // of all Lockers that are known of
	tokens       bool
	tokenMemory  time.Duration // 0: the default
	gates        gates
	hubs         []*push.Hub // one for each node
	mute         sync.Once   // the log has said that a user may not subscribe
	grant        wire.Script // for these keys only, see grantScriptOf
	clock        backend.Clock
	guarantees   backend.Guarantees
	holders      wire.HolderTexts
	attempts     atomic.Uint64
	proposed     atomic.Int64 // the last token that was proposed
	topUps       topUps
	owned        []*goredis.Client
	end          context.CancelFunc
}

// majorityWithTokens also implements ForceReleaser and Revoker, which name a hold by its
// token, FloorRaiser and TokenTeller.
type majorityWithTokens struct{ *majority }

var (
	_ backend.Backend       = (*majority)(nil)
	_ backend.Watcher       = (*majority)(nil)
	_ backend.ReleaseTeller = (*majority)(nil)
	_ backend.Inspector     = (*majority)(nil)
	_ backend.Lister        = (*majority)(nil)
	_ backend.ForceReleaser = majorityWithTokens{}
	_ backend.Revoker       = majorityWithTokens{}
	_ backend.FloorRaiser   = majorityWithTokens{}
	_ backend.TokenTeller   = majorityWithTokens{}
)

func newMajority(clients []*goredis.Client, owned bool, opts Options) (*majority, error) {
	prefix := cmp.Or(opts.Prefix, defaultPrefix)
	ttl := opts.Lock.TTL
	if ttl <= 0 {
		ttl = lock.DefaultTTL
	}
	if err := wire.CheckPrefix(prefix); err != nil {
		return nil, fmt.Errorf("redlock: %w", err)
	}
	switch {
	case opts.NodeTimeout < 0 || opts.RestartDelay < 0 || opts.TokenMemory < 0:
		return nil, fmt.Errorf("redlock: %w: NodeTimeout, RestartDelay and TokenMemory must not be negative", backend.ErrInvalid)
	case opts.RestartDelay > 0 && opts.RestartDelay < ttl:
		return nil, fmt.Errorf("redlock: %w: the restart delay of %s is less than the TTL of %s, and a node that has lost its data would vote while a lease runs that it has forgotten", backend.ErrInvalid, opts.RestartDelay, ttl)
	case opts.NodeTimeout > ttl/3:
		return nil, fmt.Errorf("redlock: %w: the node timeout of %s is more than a third of the TTL of %s, and one node that does not answer could cost the lease", backend.ErrInvalid, opts.NodeTimeout, ttl)
	}
	if least := leastTokenMemory(max(opts.RestartDelay, ttl)); opts.TokenMemory > 0 && opts.TokenMemory < least {
		return nil, fmt.Errorf("redlock: %w: the token memory of %s is less than %s, twice the restart delay: a hold without renewal lasts for up to one restart delay (the longest TTL) and is named by its token, and what is forgotten after it must be older than the clocks of the nodes are apart", backend.ErrInvalid, opts.TokenMemory, least)
	}
	b := &majority{
		quorum:       len(clients)/2 + 1,
		prefix:       prefix,
		mark:         prefix + "node",
		part:         rand.IntN(wire.Parts),
		grant:        grantScriptOf(clients, prefix),
		nodeTimeout:  opts.NodeTimeout,
		restartDelay: opts.RestartDelay,
		tokens:       !opts.WithoutTokens,
		tokenMemory:  opts.TokenMemory,
		gates:        newGates(),
		clock:        backend.SystemClock(),
	}
	if b.nodeTimeout == 0 {
		b.nodeTimeout = nodeTimeoutFor(ttl)
	}
	if b.restartDelay == 0 {
		b.restartDelay = ttl
	}
	if owned {
		b.owned = clients
	}
	b.longestDelay = b.restartDelay
	b.guarantees = guarantees(len(clients), b.tokens, b.restartDelay, b.tokenMemory, false)
	ctx, cancel := context.WithCancel(context.Background())
	b.end = cancel
	for _, c := range clients {
		b.nodes = append(b.nodes, &node{
			name: c.Options().Addr, clock: b.clock, ctx: ctx, timeout: b.nodeTimeout, wake: make(chan struct{}),
			// The copy shares the caller's connections and gives up in time.
			server: redisServer{client: c.WithTimeout(b.nodeTimeout), mark: b.mark, delay: b.longestDelay},
		})
		b.hubs = append(b.hubs, push.New(func(ctx context.Context) *goredis.PubSub { return c.Subscribe(ctx) }))
	}
	return b, nil
}

// Guarantees says what is promised. Holds survive a restart of every node only if
// all kept append-only files when the backend was opened.
func (b *majority) Guarantees() backend.Guarantees { return b.guarantees.Clone() }

// Close waits until the nodes have got what was on the way to them, for no longer
// than a node has to answer, and closes the clients if they were opened by URL.
func (b *majority) Close() error {
	var closing sync.WaitGroup // each may wait for a node that hangs
	for _, h := range b.hubs {
		closing.Go(h.Close)
	}
	defer closing.Wait()
	limit := time.NewTimer(2 * b.nodeTimeout)
	defer limit.Stop()
	for _, n := range b.nodes {
		idle := n.close()
		if idle == nil {
			continue
		}
		select {
		case <-idle:
		case <-limit.C:
			limit.Reset(0)
		}
	}
	b.end()
	closeAll(b.owned) // which also ends what the hubs wait for
	return nil
}
