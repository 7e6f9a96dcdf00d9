package wire

import (
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// HolderTexts writes the public details of holders. The last result is kept, since
// a process seldom has more than one.
type HolderTexts struct{ last atomic.Pointer[encodedHolder] }

// encodedHolder is a holder and its details as stored.
type encodedHolder struct {
	holder  backend.Holder
	details string
}

// Of leaves out Since, which is said beside the details.
func (t *HolderTexts) Of(h backend.Holder) string {
	h.Since = time.Time{}
	if last := t.last.Load(); last != nil && last.holder == h {
		return last.details
	}
	text, err := json.Marshal(h)
	if err != nil {
		text = []byte("{}") // strings and a number never fail
	}
	t.last.Store(&encodedHolder{holder: h, details: string(text)})
	return string(text)
}

// HolderOf reads what HolderTexts wrote, by whatever version, and the server's
// milliseconds.
func HolderOf(details, since string) backend.Holder {
	var h backend.Holder
	if json.Unmarshal([]byte(details), &h) != nil {
		h = backend.Holder{}
	}
	h.Since = time.Time{}
	if ms, err := strconv.ParseInt(since, 10, 64); err == nil {
		h.Since = time.UnixMilli(ms).UTC()
	}
	return h
}
