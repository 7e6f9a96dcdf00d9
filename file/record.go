package filelock

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// recordVersion is the version of the state file that this code writes.
const recordVersion = 1

// maxRecord bounds what is read of a state file. The largest record, with 64
// holds and every character escaped, stays below 16 KiB.
const maxRecord = 64 << 10

// maxToken is the largest token, the same as on the other backends with a counter
// of their own: what a 64-bit float can hold exactly.
const maxToken = 1<<53 - 1

// record is the state file of a key that is held. It contains no secret: owners
// and acquisition ids are stored as hashes.
type record struct {
	Version int            `json:"version"`
	Key     string         `json:"key"`
	runID                  // of the boot clock that the expiries are read on
	Token   uint64         `json:"token"`
	Owner   string         `json:"owner,omitempty"` // ownerHash, or empty without an explicit owner
	Holder  backend.Holder `json:"holder"`
	Holds   []hold         `json:"holds"`
	Revoked bool           `json:"revoked,omitempty"` // it is that of nobody, until it runs out
}

// hold is one acquisition.
type hold struct {
	ID      string `json:"id"`      // idHash
	Expires int64  `json:"expires"` // nanoseconds on the boot clock
}

// idHash stands for an acquisition id. The id has 128 random bits, so that its
// hash does not reveal it.
func idHash(id backend.ID) string {
	sum := sha256.Sum256(append([]byte("mortise acquisition\x00"), id[:]...))
	return hex.EncodeToString(sum[:16])
}

// ownerHash stands for an explicit owner of a key, or is empty for none.
func ownerHash(key, owner string) string {
	if owner == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("mortise owner\x00" + key + "\x00" + owner))
	return hex.EncodeToString(sum[:])
}

var (
	// errDamaged: a state file is not what this package wrote.
	errDamaged = errors.New("not a record of this key")
	// errNewer: a state file was written by a later version of this package.
	errNewer = errors.New("written by a newer version of the program's lock package")
)

// decode reads the state file of a key. It accepts only what encode writes.
func decode(data []byte, key string) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(data, r); err != nil {
		// A newer version may have other types in its fields.
		var v struct {
			Version int    `json:"version"`
			Key     string `json:"key"`
		}
		if json.Unmarshal(data, &v) == nil && v.Version > recordVersion && v.Key == key {
			return nil, errNewer
		}
		return nil, fmt.Errorf("%w: %v", errDamaged, err)
	}
	switch {
	case r.Key != key:
		return nil, fmt.Errorf("%w: it names another key", errDamaged)
	case r.Version > recordVersion:
		return nil, errNewer
	case r.Version != recordVersion:
		return nil, fmt.Errorf("%w: its version is %d", errDamaged, r.Version)
	case r.runID == runID{}:
		return nil, fmt.Errorf("%w: it does not say which boot it is from", errDamaged)
	case r.Token == 0 || r.Token > maxToken:
		return nil, fmt.Errorf("%w: its token is out of range", errDamaged)
	case !isHash(r.Owner, sha256.Size) && r.Owner != "":
		return nil, fmt.Errorf("%w: its owner is malformed", errDamaged)
	case len(r.Holds) == 0 || len(r.Holds) > backend.MaxHolds || r.Owner == "" && len(r.Holds) > 1:
		return nil, fmt.Errorf("%w: it has %d holds", errDamaged, len(r.Holds))
	}
	seen := make(map[string]bool, len(r.Holds))
	for _, h := range r.Holds {
		if !isHash(h.ID, 16) || h.Expires <= 0 || seen[h.ID] {
			return nil, fmt.Errorf("%w: a hold is malformed", errDamaged)
		}
		seen[h.ID] = true
	}
	return r, nil
}

func isHash(s string, size int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == size
}

func (r *record) encode() ([]byte, error) { return json.Marshal(r) }

// plausible refuses a record of this boot that claims to last longer than any
// lease can, which would block its key for ever.
func (r *record) plausible(run runID, now int64) bool {
	for _, h := range r.Holds {
		if r.is(run) && h.Expires-now > int64(maxTTL) {
			return false
		}
	}
	return true
}

// live returns the holds that have not expired. A nil record and one from before
// a reboot have none.
func (r *record) live(run runID, now int64) []hold {
	if r == nil || !r.is(run) {
		return nil
	}
	var live []hold
	for _, h := range r.Holds {
		if h.Expires > now {
			live = append(live, h)
		}
	}
	return live
}

// find returns the position of an acquisition in the holds, or -1.
func find(holds []hold, id string) int {
	for i, h := range holds {
		if h.ID == id {
			return i
		}
	}
	return -1
}

// remaining is how long the last of the holds lasts.
func remaining(holds []hold, now int64) time.Duration {
	var last int64
	for _, h := range holds {
		last = max(last, h.Expires)
	}
	return max(time.Duration(last-now), 0)
}

// heldBy is the refusal for everybody but the owner.
func (r *record) heldBy(live []hold, now int64) error {
	return &backend.HeldError{Key: r.Key, Holder: r.Holder, Remaining: remaining(live, now)}
}
