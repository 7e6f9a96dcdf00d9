package conformance

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/rules"
)

// Rule is one promise that the suite tests.
type Rule struct {
	// Name is the name of the subtest and of the result.
	Name string `json:"name"`
	// Subject groups rules: exclusion, release, expiry, renewal, waiting, loss, tokens,
	// reentrancy, processes, keys, errors, close, network, faults, backend, guarded writes.
	Subject string `json:"subject"`
	// Statement is the rule in one sentence.
	Statement string `json:"statement"`
	// Claim names the guarantees that switch the rule on. Empty: every lock must
	// keep it.
	Claim string `json:"claim,omitempty"`
	// NeedsBackend: the rule needs Config.OpenBackend.
	NeedsBackend bool `json:"needs_backend,omitempty"`
	// Limit, plus LimitTTLs times the TTL, is when a case is given up as hanging.
	Limit     time.Duration `json:"-"`
	LimitTTLs int           `json:"limit_ttls"`
}

// MarshalJSON writes the limit in seconds, as "limit_seconds".
func (r Rule) MarshalJSON() ([]byte, error) {
	type plain Rule
	return json.Marshal(struct {
		plain
		Limit float64 `json:"limit_seconds"`
	}{plain(r), r.Limit.Seconds()})
}

// Rules lists the rules of the suite in the order in which it runs them.
func Rules() []Rule {
	out := make([]Rule, len(rules.All))
	for i, r := range rules.All {
		names := make([]string, len(r.Claims))
		for i, c := range r.Claims {
			names[i] = c.Name
		}
		out[i] = Rule{
			Name: r.Name, Subject: r.Subject, Statement: r.Statement, Claim: strings.Join(names, ", "),
			NeedsBackend: r.NeedsBackend, Limit: r.Limit, LimitTTLs: r.LimitTTLs,
		}
	}
	return out
}

// Claimed reports whether the guarantees claim what the rule tests. A rule without a
// Claim is for every lock. A Rule that is not one of Rules is claimed by nobody.
func (r Rule) Claimed(g backend.Guarantees) bool {
	for _, known := range rules.All {
		if known.Name == r.Name {
			return known.ClaimedBy(g)
		}
	}
	return false
}
