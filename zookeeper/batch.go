package zklock

import (
	"context"
	"slices"
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
	var nodes []*node // of one session
	var at []int
	var alone sync.WaitGroup
	defer alone.Wait()
	renew := func(n *node, i int) {
		alone.Go(func() { out[i].Validity, out[i].Err = n.renew(ctx) })
	}
	for i, hold := range holds {
		n, err := b.held(ctx, hold)
		if err == nil {
			err = n.alive(n.s.clock.Now())
		}
		switch {
		case err != nil:
			out[i].Err = err
		case len(nodes) > 0 && n.s != nodes[0].s: // the session has just ended
			renew(n, i)
		default:
			nodes, at = append(nodes, n), append(at, i)
		}
	}
	if len(nodes) == 0 {
		return
	}
	v, failed, err := confirmAll(ctx, nodes)
	for i, n := range nodes {
		switch {
		case err == nil:
			out[at[i]].Validity, out[at[i]].Err = n.renewed(v)
		case i == failed:
			out[at[i]].Err = writeError(n.key, n.conclude(err))
		case failed >= 0:
			renew(n, at[i])
		default:
			out[at[i]].Err = writeError(n.key, err)
		}
	}
}

// confirmAll is [node.confirm] of nodes of one session. Where the error is that of one of them it
// returns which, else a negative number.
func confirmAll(ctx context.Context, nodes []*node) (v backend.Validity, failed int, err error) {
	s := nodes[0].s
	checks := make([]any, len(nodes))
	for i, n := range nodes {
		checks[i] = n.unrevoked()
	}
	a := ask(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(checks...) }, nil)
	if a.err != nil {
		failed = slices.IndexFunc(a.value, func(r zk.MultiResponse) bool { return r.Error != nil })
		return backend.Validity{}, failed, a.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proof.wrote(a.sent), -1, nil
}
