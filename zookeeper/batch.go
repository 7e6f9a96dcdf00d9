package zklock

import (
	"context"
	"sync"

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
	s, err := b.session()
	var nodes []*node
	var at []int
	for i, hold := range holds {
		var n *node
		if out[i].Err = err; err == nil {
			n, out[i].Err = s.held(hold)
		}
		if out[i].Err == nil {
			nodes, at = append(nodes, n), append(at, i)
		}
	}
	if len(nodes) == 0 {
		return
	}
	v, failed, err := s.confirm(ctx, nodes...)
	var alone sync.WaitGroup
	for i, n := range nodes {
		r := &out[at[i]]
		switch {
		case err == nil:
			r.Validity, r.Err = n.renewed(v)
		case failed >= 0 && i != failed:
			alone.Go(func() { r.Validity, r.Err = n.renew(ctx) })
		default:
			r.Err = writeError(n.key, err)
		}
	}
	alone.Wait()
}
