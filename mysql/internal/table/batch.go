package table

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// maxBatch bounds the length of a statement, and the number of rows that it locks.
const maxBatch = 200

// patiencePart is the part of the shortest TTL of a batch in which holds may be tried again:
// the answer comes well before a third of it, when it would be given up.
const patiencePart = 10

// RenewBatch renews up to 200 holds of one TTL in two statements. The first extends
// those that are alone on their keys and reports the server's time, the second reads
// what has become of them. Every other hold is renewed by itself. None
// waits for a row that somebody has locked: such a hold is tried again, as Renew does,
// when all the others have been renewed.
func (b *Backend) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	began := b.clock.Now()
	out := make([]backend.Renewal, len(holds))
	byTTL := map[time.Duration][]int{}
	shortest := time.Duration(math.MaxInt64)
	for i, hold := range holds {
		byTTL[hold.TTL] = append(byTTL[hold.TTL], i)
		shortest = min(shortest, hold.TTL)
	}
	for ttl, list := range byTTL {
		for len(list) > 0 {
			n := min(len(list), maxBatch)
			b.renewChunk(ctx, ttl, holds, list[:n], out)
			list = list[n:]
		}
	}
	b.renewOutrun(ctx, holds, out, began.Add(shortest/patiencePart))
	return out
}

// renewOutrun tries the holds again whose rows others had locked or changed, until the given
// time. A guarded write of this client may begin between two tries.
func (b *Backend) renewOutrun(ctx context.Context, holds []backend.Hold, out []backend.Renewal, until backend.Instant) {
	for try := 1; try < wire.Repeats; try++ {
		var left []int
		for i, r := range out {
			if errors.Is(r.Err, errUnchanged) {
				left = append(left, i)
			}
		}
		if len(left) == 0 || wire.Jitter(ctx, try) != nil {
			return
		}
		for _, i := range left {
			if !b.clock.Now().Before(until) {
				return
			}
			if !b.guards.renew(holds[i]) {
				out[i] = backend.Renewal{Validity: backend.Validity{Sent: b.clock.Now()}}
				continue
			}
			out[i].Validity, out[i].Err = b.renewOnce(ctx, holds[i])
			b.guards.renewed(holds[i])
		}
	}
}

func (b *Backend) renewChunk(ctx context.Context, ttl time.Duration, holds []backend.Hold, list []int, out []backend.Renewal) {
	list = b.unguarded(holds, list, out)
	if len(list) == 0 {
		return
	}
	a, rows, err := b.extendAll(ctx, ttl, holds, list)
	for _, i := range list {
		hold := holds[i]
		r := rows[hold.Key]
		switch {
		case err != nil:
			out[i].Err = renewalError(ctx, hold.Key, err)
		case a.id != 0 && r.holds == hashOf(hold.ID.Hex()) && r.expires >= a.id+wire.Micros(ttl):
			out[i].Validity = backend.Validity{Sent: a.sent, For: backend.ValidFor(ttl)}
		default:
			out[i].Validity, out[i].Err = b.renewOnce(ctx, hold)
		}
		b.guards.renewed(hold)
	}
}

// unguarded answers for the holds whose rows are locked by guarded writes of this
// client, and returns the others.
func (b *Backend) unguarded(holds []backend.Hold, list []int, out []backend.Renewal) []int {
	free := make([]int, 0, len(list))
	for _, i := range list {
		if b.guards.renew(holds[i]) {
			free = append(free, i)
		} else {
			out[i].Validity.Sent = b.clock.Now()
		}
	}
	return free
}

// extendAll extends the holds that are alone on their keys and whose rows nobody has
// locked, and returns the rows as they are then, by key.
func (b *Backend) extendAll(ctx context.Context, ttl time.Duration, holds []backend.Hold, list []int) (answer, map[string]row, error) {
	keys, hashes := statement(nil).text(" WHERE lock_key IN ("), statement(nil).text(" AND holds IN (")
	for n, i := range list {
		if n > 0 {
			keys, hashes = keys.text(","), hashes.text(",")
		}
		keys = keys.bytes(holds[i].Key)
		hashes = hashes.bytes(hashOf(holds[i].ID.Hex()))
	}
	keys, hashes = keys.text(")"), hashes.text(")")
	where := append(append(statement(nil), keys...), hashes...).text(" AND expires>" + now)
	a, err := b.change(ctx, b.updateUnlocked(len(list), where, statement(nil).
		text(touched+",expires=GREATEST(expires,"+epoch+"+INTERVAL (LAST_INSERT_ID("+nowMicros+")+").micros(ttl).text(") MICROSECOND)")))
	if err != nil {
		return answer{}, nil, err
	}
	found, err := b.read(ctx, b.selects().text(byPrimary).text(string(keys)))
	if err != nil {
		return answer{}, nil, err
	}
	rows := make(map[string]row, len(found))
	for _, r := range found {
		rows[r.key] = r
	}
	return a, rows, nil
}
