package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/redis/internal/wire"
)

var _ backend.Forgetter = (*majority)(nil)

// forgetScript removes the accepted token KEYS[1] of a key without a record, KEYS[2].
const forgetScript = `if not redis.pcall('GET', KEYS[2]) then return redis.call('DEL', KEYS[1]) end return 0`

// forgetChunk is how many keys of a node one pipeline is about.
const forgetChunk = 200

// Forget implements backend.Forgetter: it removes the accepted tokens, which would stay
// for a day, from every node. One that was slow may still be owed a release, and has the
// key until then; so what is on the way to a node goes first. A minority that can't be
// reached keeps what it has for that day.
func (b *majority) Forget(ctx context.Context, prefix string) error {
	if prefix == "" {
		return fmt.Errorf("redlock: %w: an empty prefix would forget the tokens of every key", backend.ErrInvalid)
	}
	settling, cancel := context.WithTimeout(ctx, listBound)
	settled := b.settle(settling)
	cancel()
	bounded, cancel := context.WithTimeout(ctx, listBound)
	defer cancel()
	failures := make([]error, len(b.nodes))
	var wg sync.WaitGroup
	for i, n := range b.nodes {
		s, ok := n.server.(redisServer)
		if !ok {
			continue
		}
		wg.Go(func() {
			if !settled[i] {
				failures[i] = fmt.Errorf("%s has not got the releases that are on the way to it", n.name)
			} else if err := b.forgetOn(bounded, s, prefix); err != nil {
				failures[i] = fmt.Errorf("%s: %w", n.name, err)
			}
		})
	}
	wg.Wait()
	failed := slices.DeleteFunc(failures, func(err error) bool { return err == nil })
	if reached := len(b.nodes) - len(failed); reached < b.quorum {
		return fmt.Errorf("redlock: forgetting keys: %w: %d of %d nodes did so, and %d are needed: %w", backend.ErrUnavailable, reached, len(b.nodes), b.quorum, wire.Describe(ctx, errors.Join(failed...)))
	}
	return nil
}

// settle waits until the nodes have got what was on the way to them, and says which have
// when ctx ends. A node carries out its requests in their order, so that an answer tells
// of those before it. One that takes no connections is not waited for.
func (b *majority) settle(ctx context.Context) [maxNodes]bool {
	var settled, down [maxNodes]bool
	nobody := b.releaseArgs("", recordHead+backend.NewID().Hex()+"|", false)
	for pause := time.Millisecond; ; pause = min(2*pause, longestRest) {
		r := b.newRound(b.nodeTimeout, (*tally).everybody, meansRelease)
		for i := range b.nodes {
			if settled[i] {
				r.tally.votes[i] = failed // is not asked again
			}
		}
		r.ask(releaseScript, nobody, false)
		r.wait(ctx, b.nodeTimeout)
		all := true
		for i, n := range b.nodes {
			settled[i] = settled[i] || r.tally.votes[i] == no && !n.owes()
			down[i] = down[i] || r.tally.votes[i] == failed && failure.DialFailed(r.calls[i].err)
			all = all && (settled[i] || down[i])
		}
		if all {
			return settled
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return settled
		}
	}
}

func (b *majority) forgetOn(ctx context.Context, s redisServer, prefix string) error {
	keys, err := s.keys(ctx, b.accepted(""), prefix)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(keys, forgetChunk) {
		_, err := s.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, key := range some {
				p.Eval(ctx, forgetScript, []string{b.accepted(key), b.record(key)})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
