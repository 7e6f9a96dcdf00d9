package table

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
)

// row is a row as it was read. Times are microseconds of the server since 1970.
type row struct {
	key     string
	owner   string
	token   int64
	holds   string
	note    []byte
	created int64
	expires int64
	now     int64

	writable bool // the server
}

func (r *row) fields() []any {
	return []any{&r.writable, &r.key, &r.owner, &r.token, &r.holds, &r.note, &r.created, &r.expires, &r.now}
}

func (r row) free() bool { return r.expires <= r.now }

func (r row) remaining() time.Duration {
	return time.Duration(max(0, r.expires-r.now)) * time.Microsecond
}

func (r row) holder() backend.Holder {
	var h backend.Holder
	if json.Unmarshal(r.note, &h) != nil {
		h = backend.Holder{}
	}
	h.Since = time.UnixMicro(r.created).UTC()
	return h
}

// held is one hold of a row.
type held struct {
	hash    string
	expires int64
}

const (
	hashLength = 32
	// maxHolds is the length of the list of as many holds as a key can have.
	maxHolds = backend.MaxHolds * (hashLength + 1 + 19 + 1)
	maxNote  = 2048
)

// unexpired are the holds that had not expired when the row was read. A single hold
// is written as its hash and expires with the row; several are a list of
// hash:expiry.
func (r row) unexpired() ([]held, error) {
	if r.free() {
		return nil, nil
	}
	if len(r.holds) == hashLength {
		return []held{{r.holds, r.expires}}, nil
	}
	var list []held
	for entry := range strings.SplitSeq(r.holds, ",") {
		hash, expiry, ok := strings.Cut(entry, ":")
		micros, err := strconv.ParseInt(expiry, 10, 64)
		if !ok || err != nil || len(hash) != hashLength {
			return nil, fmt.Errorf("mysqllock: key %q: %w: its row was not written by this version of the library, and is left as it is; remove it, or choose another table", r.key, backend.ErrPermanent)
		}
		if micros > r.now {
			list = append(list, held{hash, micros})
		}
	}
	return list, nil
}

// listHolds is the list that unexpired reads.
func listHolds(list []held) []byte {
	var out []byte
	for i, h := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, h.hash...), ':')
		out = strconv.AppendInt(out, h.expires, 10)
	}
	return out
}

// split takes the hold out of the list.
func split(list []held, hash string) (mine held, others []held, found bool) {
	for _, h := range list {
		if h.hash == hash {
			mine, found = h, true
		} else {
			others = append(others, h)
		}
	}
	return mine, others, found
}

func latest(list []held) int64 {
	var last int64
	for _, h := range list {
		last = max(last, h.expires)
	}
	return last
}

// hashOf is what the table has in place of a secret.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte("mortise\x00" + secret))
	return hex.EncodeToString(sum[:hashLength/2])
}

// ownerField is the owner as stored: "-" where there is none.
func ownerField(owner string) string {
	if owner == "" {
		return "-"
	}
	return hashOf("owner\x00" + owner)
}

// encodedHolder is a holder and its details as stored.
type encodedHolder struct {
	holder  backend.Holder
	details string
}

// encodeHolder writes the public details. Since is the server's to say. The last
// result is kept, since a process seldom has more than one. Details that would not
// fit the column are left out.
func (b *Backend) encodeHolder(h backend.Holder) string {
	h.Since = time.Time{}
	if last := b.lastHolder.Load(); last != nil && last.holder == h {
		return last.details
	}
	text, err := json.Marshal(h)
	if err == nil && len(text) > maxNote { // a label in characters that JSON escapes
		text, err = json.Marshal(backend.Holder{PID: h.PID, PairID: h.PairID})
	}
	if err != nil {
		text = []byte("{}") // strings and a number never fail
	}
	b.lastHolder.Store(&encodedHolder{h, string(text)})
	return string(text)
}
