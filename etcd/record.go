package etcdlock

import (
	"encoding/json"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/mortiselock/lock/backend"
)

// record is the value of an acquisition's key: what others may know. It contains
// no secret.
type record struct {
	Holder backend.Holder `json:"holder"`
	// TTL is that of the hold, in milliseconds.
	TTL int64 `json:"ttl_ms"`
	// Floor is what the token is counted on from: it is larger than the create revision
	// of the key by that.
	Floor uint64 `json:"floor,omitempty"`
	// Revoked: nobody renews the lease of the key any more.
	Revoked bool `json:"revoked,omitempty"`
}

// encodeRecord writes the value. now is when the key was granted on this machine's
// clock, since etcd has none that it shows; it is zero for a place in the queue.
func encodeRecord(h backend.Holder, ttl time.Duration, from uint64, now time.Time) string {
	h.Since = now.UTC()
	if now.IsZero() {
		h.Since = time.Time{}
	}
	return record{Holder: h, TTL: ttl.Milliseconds(), Floor: from}.text()
}

func (r record) text() string {
	text, err := json.Marshal(r)
	if err != nil {
		return "{}" // strings and numbers never fail
	}
	return string(text)
}

// decodeRecord reads what encodeRecord wrote, by whatever version. Of a value that
// somebody else wrote nothing is known.
func decodeRecord(kv *mvccpb.KeyValue) record {
	var r record
	if kv == nil || json.Unmarshal(kv.Value, &r) != nil || r.TTL < 0 {
		return record{}
	}
	return r
}

// tokenOf is the fencing token of the acquisition that has the key.
func tokenOf(kv *mvccpb.KeyValue) uint64 {
	return decodeRecord(kv).Floor + uint64(kv.CreateRevision)
}

func (r record) ttl() time.Duration { return time.Duration(r.TTL) * time.Millisecond }

// heldBy is the refusal that names the holder. The time is an upper bound, unless
// the holder renews.
func heldBy(key string, kv *mvccpb.KeyValue) error {
	r := decodeRecord(kv)
	return &backend.HeldError{Key: key, Holder: r.Holder, Remaining: r.ttl()}
}
