package engine

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// CheckTokens is the oracle of fencing: the tokens of all grants of the key are
// distinct, and grow in the order of the grants. Grants with an owner are left
// out, since re-entry repeats a token on purpose.
//
// Without byReturn, only grants that certainly came one after the other are
// compared: one call had returned before the other was made. With byReturn the
// grants are in the order in which their calls returned, which is right where no
// lease expires: a lease is held when its call returns, so that the next grant
// comes after its release.
func (e *Env) CheckTokens(key string, byReturn bool) {
	e.checkTokens(key, byReturn, func(r *Record) bool { return r.Owner == "" })
}

// CheckOutermostTokens is CheckTokens for a key that no owner entered again, by the returns.
func (e *Env) CheckOutermostTokens(key string) {
	e.checkTokens(key, true, func(*Record) bool { return true })
}

func (e *Env) checkTokens(key string, byReturn bool, counts func(r *Record) bool) {
	var records []*Record
	e.mu.Lock()
	for _, r := range e.records {
		if r.Key == key && counts(r) {
			records = append(records, r)
		}
	}
	e.mu.Unlock()
	if text, when := tokenOrder(records, byReturn); text != "" {
		e.ProofAt(when, key, "%s", text)
	}
}

// tokenOrder describes the first grant whose token is wrong, and says when it was.
func tokenOrder(records []*Record, byReturn bool) (string, time.Duration) {
	first := map[uint64]*Record{}
	for _, r := range records {
		if r.Token == 0 || r.Token > math.MaxInt64 {
			return fmt.Sprintf("%s was granted the key at %s with token %d; expected a token from 1 to 2^63 - 1", r.Who, Seconds(r.Granted), r.Token), r.Granted
		}
		if o := first[r.Token]; o != nil {
			return fmt.Sprintf("token %d was given twice: to %s at %s and to %s at %s", r.Token, o.Who, Seconds(o.Granted), r.Who, Seconds(r.Granted)), r.Granted
		}
		first[r.Token] = r
	}
	ended := slices.SortedFunc(slices.Values(records), func(a, b *Record) int { return int(a.Granted - b.Granted) })
	begun := ended
	if !byReturn {
		begun = slices.SortedFunc(slices.Values(records), func(a, b *Record) int { return int(a.Invoked - b.Invoked) })
	}
	var largest *Record
	i := 0
	for _, r := range begun {
		for ; i < len(ended) && ended[i] != r && (byReturn || ended[i].Granted <= r.Invoked); i++ {
			if largest == nil || ended[i].Token > largest.Token {
				largest = ended[i]
			}
		}
		if largest != nil && largest.Token >= r.Token {
			return fmt.Sprintf("the token went back: %s was granted the key at %s with token %d, and later %s was granted it at %s with token %d",
				largest.Who, Seconds(largest.Granted), largest.Token, r.Who, Seconds(r.Granted), r.Token), r.Granted
		}
	}
	return "", 0
}
