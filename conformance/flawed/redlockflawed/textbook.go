package redlockflawed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var (
	healthy = Lock{
		ID: "healthy", Title: "Redlock as the Redis page describes it", File: "textbook.go",
		On: onNodes{nodes: 3, change: func(t textbook) backend.Backend { return t }},
	}
	healthyFrozen = Lock{
		ID: "healthy", Title: "the same with a server that stands still", File: "textbook.go", Slow: true,
		On: onNodes{nodes: 3, change: func(t textbook) backend.Backend { return t }},
	}
)

// textbook is a correct Redlock, and the ground on which the broken ones are built.
// The record is a string that expires, on every node; its value is the id of the
// acquisition. All nodes are asked at the same time, each for a short time, and a
// majority of all decides.
type textbook struct {
	nodes   []*goredis.Client
	timeout time.Duration // for each node

	// The mistakes. Each broken lock has one of them.
	votesNeeded    int  // instead of a majority
	errorsAreVotes bool // who does not answer agrees
	keepsMinority  bool // what a failed acquisition got is not given back
	oneByOne       bool // the nodes are asked in turn
	recreates      bool // a renewal writes the record where it is missing, and counts it
	minorityRenews bool // one node is enough for a renewal
}

var (
	// take returns 1, or the id of the one who has the key.
	take = goredis.NewScript(`
		local owner = redis.call('GET', KEYS[1])
		if owner and owner ~= ARGV[1] then return owner end
		redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
		return 1`)

	extend = goredis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)

	extendOrCreate = goredis.NewScript(`
		local owner = redis.call('GET', KEYS[1])
		if owner and owner ~= ARGV[1] then return 0 end
		redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
		return 1`)

	drop = goredis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('DEL', KEYS[1])`)
)

func name(key string) string { return "redlockflawed:" + key }

func now() backend.Instant { return backend.SystemClock().Now() }

func (t textbook) quorum() int {
	if t.votesNeeded > 0 {
		return t.votesNeeded
	}
	return len(t.nodes)/2 + 1
}

// votes are the answers of the nodes.
type votes struct {
	yes, failed int
	owners      map[string]int // who has the key, and on how many nodes
}

// ask runs the script on all nodes.
func (t textbook) ask(ctx context.Context, s *goredis.Script, key string, args ...any) votes {
	v := votes{owners: map[string]int{}}
	var mu sync.Mutex
	one := func(node *goredis.Client) {
		limited, cancel := context.WithTimeout(ctx, t.timeout)
		defer cancel()
		answer, err := s.Run(limited, node, []string{name(key)}, args...).Result()
		mu.Lock()
		defer mu.Unlock()
		switch owner, isOwner := answer.(string); {
		case err != nil:
			v.failed++
		case isOwner:
			v.owners[owner]++
		case answer == int64(1):
			v.yes++
		default:
			v.owners[""]++
		}
	}
	if t.oneByOne {
		for _, node := range t.nodes {
			one(node)
		}
		return v
	}
	var all sync.WaitGroup
	for _, node := range t.nodes {
		all.Go(func() {
			if t.keepsMinority || t.votesNeeded > 0 {
				time.Sleep(rand.N(4 * time.Millisecond)) // so that many who ask split the nodes, on one processor too
			}
			one(node)
		})
	}
	all.Wait()
	return v
}

var errFewNodes = errors.New("too few nodes answered")

func (t textbook) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	for splits := 0; ; splits++ {
		sent := now()
		v := t.ask(ctx, take, req.Key, req.ID.Hex(), req.TTL.Milliseconds())
		if t.errorsAreVotes {
			v.yes, v.failed = v.yes+v.failed, 0
		}
		if v.yes >= t.quorum() {
			return backend.Grant{Holds: 1, Validity: validity(sent, req.TTL)}, nil
		}
		if v.yes+v.failed > 0 && !t.keepsMinority {
			t.ask(context.WithoutCancel(ctx), drop, req.Key, req.ID.Hex())
		}
		most := 0
		for _, n := range v.owners {
			most = max(most, n)
		}
		switch {
		case ctx.Err() != nil:
			return backend.Grant{}, ctx.Err()
		case v.failed > len(t.nodes)-t.quorum():
			return backend.Grant{}, fmt.Errorf("%w: %d of %d", errFewNodes, len(t.nodes)-v.failed, len(t.nodes))
		case most >= t.quorum() || splits == 8:
			return backend.Grant{}, &backend.HeldError{Key: req.Key}
		}
		// Nobody has a majority. All give up and try again at random.
		select {
		case <-time.After(rand.N(2 * time.Millisecond << splits)):
		case <-ctx.Done():
			return backend.Grant{}, ctx.Err()
		}
	}
}

func (t textbook) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	script := extend
	if t.recreates {
		script = extendOrCreate
	}
	sent := now()
	v := t.ask(ctx, script, hold.Key, hold.ID.Hex(), hold.TTL.Milliseconds())
	switch {
	case v.yes >= t.quorum(), t.minorityRenews && v.yes > 0:
		return validity(sent, hold.TTL), nil
	case v.yes+v.failed >= t.quorum():
		return backend.Validity{}, errFewNodes
	}
	return backend.Validity{}, backend.ErrNotHeld
}

func (t textbook) Release(ctx context.Context, hold backend.Hold) error {
	v := t.ask(ctx, drop, hold.Key, hold.ID.Hex())
	gone := v.owners[""]
	switch {
	case gone >= t.quorum():
		return backend.ErrNotHeld
	case v.yes+gone >= t.quorum():
		return nil
	}
	return errFewNodes
}

func (t textbook) Close() error { return nil }

func (t textbook) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name:           "redlock of the textbook",
		Reach:          backend.ReachNetwork,
		Assumptions:    []string{"A majority of the Redis servers keep their data, and their clocks run at the speed of the holder's."},
		Expiry:         backend.ClockMajority,
		MinTTL:         10 * time.Millisecond,
		MaxTTL:         24 * time.Hour,
		TTLGrain:       time.Millisecond,
		Token:          backend.TokenNone,
		Reentrancy:     backend.ReentrancyNone,
		Waiting:        backend.WaitPoll,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
	}
}

func validity(sent backend.Instant, ttl time.Duration) backend.Validity {
	return backend.Validity{Sent: sent, For: backend.ValidFor(ttl)}
}
