package conformance

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// checkTokens is the oracle of fencing: the tokens of all grants of the key are
// distinct, and grow in the order of the grants. Grants with an owner are left
// out, since re-entry repeats a token on purpose.
//
// Without byReturn, only grants that certainly came one after the other are
// compared: one call had returned before the other was made. With byReturn the
// grants are in the order in which their calls returned, which is right where no
// lease expires: a lease is held when its call returns, so that the next grant
// comes after its release.
func (e *env) checkTokens(key string, byReturn bool) {
	var records []*record
	e.mu.Lock()
	for _, r := range e.records {
		if r.key == key && r.owner == "" {
			records = append(records, r)
		}
	}
	e.mu.Unlock()
	if text, when := tokenOrder(records, byReturn); text != "" {
		e.proofAt(when, key, "%s", text)
	}
}

// tokenOrder describes the first grant whose token is wrong, and says when it was.
func tokenOrder(records []*record, byReturn bool) (string, time.Duration) {
	first := map[uint64]*record{}
	for _, r := range records {
		if r.token == 0 || r.token > math.MaxInt64 {
			return fmt.Sprintf("%s was granted the key at %s with token %d; expected a token from 1 to 2^63 - 1", r.who, seconds(r.granted), r.token), r.granted
		}
		if o := first[r.token]; o != nil {
			return fmt.Sprintf("token %d was given twice: to %s at %s and to %s at %s", r.token, o.who, seconds(o.granted), r.who, seconds(r.granted)), r.granted
		}
		first[r.token] = r
	}
	ended := slices.SortedFunc(slices.Values(records), func(a, b *record) int { return int(a.granted - b.granted) })
	begun := ended
	if !byReturn {
		begun = slices.SortedFunc(slices.Values(records), func(a, b *record) int { return int(a.invoked - b.invoked) })
	}
	var largest *record
	i := 0
	for _, r := range begun {
		for ; i < len(ended) && ended[i] != r && (byReturn || ended[i].granted <= r.invoked); i++ {
			if largest == nil || ended[i].token > largest.token {
				largest = ended[i]
			}
		}
		if largest != nil && largest.token >= r.token {
			return fmt.Sprintf("the token went back: %s was granted the key at %s with token %d, and later %s was granted it at %s with token %d",
				largest.who, seconds(largest.granted), largest.token, r.who, seconds(r.granted), r.token), r.granted
		}
	}
	return "", 0
}
