package zklock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

// maxBatch bounds a transaction, so that its paths are far below the megabyte that a server
// reads at most (jute.maxbuffer), and nothing waits behind it for long.
const maxBatch = 128

// RenewBatch confirms the nodes of 128 holds by one transaction. Where one of them has gone or
// was revoked it confirms none of them, and each is asked about by itself.
func (b *zkBackend) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	for from := 0; from < len(holds); from += maxBatch {
		to := min(from+maxBatch, len(holds))
		b.renewChunk(ctx, holds[from:to], out[from:to])
	}
	return out
}

func (b *zkBackend) renewChunk(ctx context.Context, holds []backend.Hold, out []backend.Renewal) {
	var nodes []*node
	var at []int
	for i, hold := range holds {
		n, err := b.held(ctx, hold)
		if err == nil {
			err = n.alive(n.s.clock.Now())
		}
		if err != nil {
			out[i].Err = err
			continue
		}
		if len(nodes) > 0 && n.s != nodes[0].s { // the session has just ended
			out[i].Validity, out[i].Err = n.renew(ctx)
			continue
		}
		nodes, at = append(nodes, n), append(at, i)
	}
	if len(nodes) == 0 {
		return
	}
	v, err := confirmAll(ctx, nodes)
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion) {
		var all sync.WaitGroup
		for i, n := range nodes {
			all.Go(func() { out[at[i]].Validity, out[at[i]].Err = n.renew(ctx) })
		}
		all.Wait()
		return
	}
	for i, n := range nodes {
		if err != nil {
			out[at[i]].Err = writeError(n.key, err)
			continue
		}
		out[at[i]].Validity, out[at[i]].Err = n.renewed(v)
	}
}

// confirmAll is [node.confirm] of nodes of one session. An error says nothing about a single one
// of them.
func confirmAll(ctx context.Context, nodes []*node) (backend.Validity, error) {
	s := nodes[0].s
	checks := make([]any, len(nodes))
	for i, n := range nodes {
		checks[i] = n.unrevoked()
	}
	a := ask(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(checks...) }, nil)
	if a.err != nil {
		return backend.Validity{}, a.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proof.wrote(a.sent), nil
}
