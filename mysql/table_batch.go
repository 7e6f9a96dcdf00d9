package mysqllock

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

// maxBatch bounds the length of a statement, and the number of rows that it locks.
const maxBatch = 200

// RenewBatch renews up to 200 holds of one TTL in two statements. The first extends
// those that are alone on their keys and reports the server's time, the second reads
// what has become of them. Every other hold is renewed by itself.
func (b *tableBackend) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := make([]backend.Renewal, len(holds))
	byTTL := map[time.Duration][]int{}
	for i, hold := range holds {
		byTTL[hold.TTL] = append(byTTL[hold.TTL], i)
	}
	for ttl, list := range byTTL {
		for len(list) > 0 {
			n := min(len(list), maxBatch)
			b.renewChunk(ctx, ttl, holds, list[:n], out)
			list = list[n:]
		}
	}
	return out
}

func (b *tableBackend) renewChunk(ctx context.Context, ttl time.Duration, holds []backend.Hold, list []int, out []backend.Renewal) {
	var sent backend.Instant
	extended := map[string]bool{} // by hash
	if len(list) > 1 {
		list = b.unguarded(holds, list, out)
		var err error
		sent, extended, err = b.extendAll(ctx, ttl, holds, list)
		for _, i := range list {
			b.guards.renewed(holds[i])
		}
		if err != nil {
			for _, i := range list {
				out[i].Err = renewalError(ctx, holds[i].Key, err)
			}
			return
		}
	}
	for _, i := range list {
		if extended[hashOf(holds[i].ID.Hex())] {
			out[i].Validity = backend.Validity{Sent: sent, For: backend.ValidFor(ttl)}
			continue
		}
		out[i].Validity, out[i].Err = b.Renew(ctx, holds[i])
	}
}

// unguarded answers for the holds whose rows are locked by guarded writes, and returns
// the others. One statement for all would wait for those rows with the locks of all
// rows before them.
func (b *tableBackend) unguarded(holds []backend.Hold, list []int, out []backend.Renewal) []int {
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

// extendAll extends the holds that are alone on their keys, and returns the hashes
// of those that the statement has extended: they have the expiry that it wrote, or a
// later one.
func (b *tableBackend) extendAll(ctx context.Context, ttl time.Duration, holds []backend.Hold, list []int) (backend.Instant, map[string]bool, error) {
	if len(list) == 0 {
		return 0, nil, nil
	}
	var keys, hashes statement
	for n, i := range list {
		if n > 0 {
			keys, hashes = keys.text(","), hashes.text(",")
		}
		keys = keys.bytes(holds[i].Key)
		hashes = hashes.bytes(hashOf(holds[i].ID.Hex()))
	}
	a, err := b.change(ctx, b.updates().text("updated="+now+",expires=GREATEST(expires,"+epoch+"+INTERVAL (LAST_INSERT_ID("+nowMicros+")+").
		micros(ttl).text(") MICROSECOND) WHERE lock_key IN (").text(string(keys)).
		text(") AND holds IN (").text(string(hashes)).text(") AND expires>"+now))
	if err != nil || a.id == 0 {
		return 0, nil, err
	}
	rows, err := b.read(ctx, b.selects().text(" WHERE lock_key IN (").text(string(keys)).text(")"))
	if err != nil {
		return 0, nil, err
	}
	done := make(map[string]bool, len(rows))
	for _, r := range rows {
		if r.expires >= a.id+micros(ttl) {
			done[r.holds] = true
		}
	}
	return a.sent, done, nil
}
