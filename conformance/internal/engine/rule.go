package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Rule is a promise with its case.
type Rule struct {
	Name         string
	Subject      string        // of the list that it is in
	Statement    string        // in one sentence
	Claims       []Claim       // that switch it on; none: every lock must keep it
	RestsOn      string        // another subject, without which it can't be kept
	NeedsBackend bool          // needs Config.OpenBackend
	Alone        bool          // runs when all others have ended, so that all clients of the store are its own
	AtDefault    bool          // it compares leases of the default TTL of a Locker, which Config.Open alone decides, with Env.TTL
	Limit        time.Duration // with LimitTTLs times the TTL, when a case is given up as hanging
	LimitTTLs    int
	Virtual      time.Duration // in place of a shorter Limit, in virtual time, where a long wait costs nothing
	Run          func(*Env)
}

// Complete checks the list of all rules, and gives each the limits that it does not state.
func Complete(rules ...[]*Rule) []*Rule {
	all := slices.Concat(rules...)
	seen := map[string]bool{}
	for _, r := range all {
		if seen[r.Name] || r.Name == "" || r.Statement == "" || r.Run == nil || r.Subject == "" {
			panic(fmt.Sprintf("conformance: rule %q is incomplete or defined twice", r.Name))
		}
		seen[r.Name] = true
		if r.Limit == 0 {
			r.Limit = 40 * time.Second
		}
		if r.LimitTTLs == 0 {
			r.LimitTTLs = 20
		}
	}
	return all
}

// ClaimedBy reports whether the guarantees, as a lock states them itself, claim what the
// rule tests.
func (r *Rule) ClaimedBy(g backend.Guarantees) bool {
	return r.missing(&Settings{Claimed: g, Says: true}) == nil
}

// missing returns the first claim that is not made, or nil.
func (r *Rule) missing(s *Settings) *Claim {
	for i := range r.Claims {
		if !r.Claims[i].Made(s) {
			return &r.Claims[i]
		}
	}
	return nil
}

func (r *Rule) limit(ttl time.Duration) time.Duration {
	limit := r.Limit
	if virtual() {
		limit = max(limit, r.Virtual)
	}
	return limit + time.Duration(r.LimitTTLs)*ttl
}
