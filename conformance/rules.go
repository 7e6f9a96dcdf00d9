package conformance

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
)

// Rule is one promise that the suite tests.
type Rule struct {
	// Name is the name of the subtest and of the result.
	Name string `json:"name"`
	// Subject groups rules: exclusion, release, expiry, renewal, loss, tokens,
	// reentrancy, waiting, processes, keys, errors, close, faults, backend, guarded writes.
	Subject string `json:"subject"`
	// Statement is the rule in one sentence.
	Statement string `json:"statement"`
	// Claim names the guarantees that switch the rule on. Empty: every lock must
	// keep it.
	Claim string `json:"claim,omitempty"`
	// Seam: the rule needs Config.OpenBackend.
	Seam bool `json:"seam,omitempty"`
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

// rule is a promise with its case.
type rule struct {
	Name, Subject, Statement string
	Seam                     bool          // needs Config.OpenBackend
	Limit                    time.Duration // with LimitTTLs times the TTL, when a case is given up as hanging
	LimitTTLs                int
	claims                   []claim // that switch it on; none: every lock must keep it
	run                      func(*env)
}

// claim is a part of the guarantees that switches rules on.
type claim struct {
	name string
	made func(s *settings) bool
}

var (
	claimTokens = claim{"Token", func(s *settings) bool {
		return s.g.Token != "" && s.g.Token != backend.TokenNone
	}}
	claimReentrancy = claim{"Reentrancy", func(s *settings) bool {
		return s.g.Reentrancy != "" && s.g.Reentrancy != backend.ReentrancyNone
	}}
	claimServerHolds = claim{"Reentrancy: server", func(s *settings) bool {
		return s.g.Reentrancy == backend.ReentrancyServer
	}}
	claimFair           = claim{"Fair", func(s *settings) bool { return s.g.Fair }}
	claimManualRenewal  = claim{"ManualRenewal", func(s *settings) bool { return s.g.ManualRenewal }}
	claimWithoutRenewal = claim{"WithoutRenewal", func(s *settings) bool { return s.g.WithoutRenewal }}
	claimLossSignal     = claim{"LossSignal", func(s *settings) bool { return s.g.LossSignal }}
	claimDeadline       = claim{"Deadline", func(s *settings) bool { return s.g.Deadline }}
	claimDetails        = claim{"HolderDetails", func(s *settings) bool { return s.g.HolderDetails }}
	// A lock that states its guarantees itself knows this package's Locker, whose
	// documentation promises the order. Adapters are not held to it.
	claimLocalOrder = claim{"the order promised by lock.Locker", func(s *settings) bool { return s.says || s.g.Fair }}
)

// allRules lists every rule in the order in which cases start.
var allRules = complete(
	subject("exclusion", exclusionRules),
	subject("release", releaseRules),
	subject("expiry", expiryRules),
	subject("renewal", renewalRules),
	subject("loss", lossRules),
	subject("tokens", tokenRules),
	subject("reentrancy", reentrancyRules),
	subject("waiting", waitingRules),
	subject("processes", processRules),
	subject("keys", keyRules),
	subject("errors", errorRules),
	subject("close", closeRules),
	subject("faults", faultRules),
	subject("backend", backendRules),
	subject("guarded writes", guardRules),
)

// complete checks the list of all rules, and gives each the limits that it does not state.
func complete(rules ...[]*rule) []*rule {
	all := slices.Concat(rules...)
	seen := map[string]bool{}
	for _, r := range all {
		if seen[r.Name] || r.Name == "" || r.Statement == "" || r.run == nil || r.Subject == "" {
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

// subject puts a subject on its rules.
func subject(name string, rules []*rule) []*rule {
	for _, r := range rules {
		r.Subject = name
	}
	return rules
}

// Rules lists the rules of the suite in the order in which it runs them.
func Rules() []Rule {
	out := make([]Rule, len(allRules))
	for i, r := range allRules {
		names := make([]string, len(r.claims))
		for i, c := range r.claims {
			names[i] = c.name
		}
		out[i] = Rule{
			Name: r.Name, Subject: r.Subject, Statement: r.Statement, Claim: strings.Join(names, ", "),
			Seam: r.Seam, Limit: r.Limit, LimitTTLs: r.LimitTTLs,
		}
	}
	return out
}

// selectRules returns the rules that are named, or whose subject is named.
func selectRules(all []*rule, only []string) ([]*rule, error) {
	if len(only) == 0 {
		return all, nil
	}
	var out []*rule
	used := map[string]bool{}
	for _, r := range all {
		if slices.Contains(only, r.Name) || slices.Contains(only, r.Subject) {
			out = append(out, r)
			used[r.Name], used[r.Subject] = true, true
		}
	}
	for _, name := range only {
		if !used[name] {
			return nil, fmt.Errorf("conformance: %q is neither a rule nor a subject of rules; did you mean %s? The subjects are %s", name, nearest(all, name), strings.Join(subjects(all), ", "))
		}
	}
	return out, nil
}

// subjects lists the subjects in the order of the rules.
func subjects(all []*rule) []string {
	var out []string
	for _, r := range all {
		if !slices.Contains(out, r.Subject) {
			out = append(out, r.Subject)
		}
	}
	return out
}

// nearest is the rule or the subject that the fewest changes of a letter make of name.
func nearest(all []*rule, name string) string {
	best, fewest := "", math.MaxInt
	names := subjects(all)
	for _, r := range all {
		names = append(names, r.Name)
	}
	for _, candidate := range names {
		if n := changes(strings.ToLower(name), strings.ToLower(candidate)); n < fewest {
			best, fewest = candidate, n
		}
	}
	return best
}

// changes is the edit distance of Levenshtein, in bytes.
func changes(a, b string) int {
	row := make([]int, len(b)+1) // of the prefix of a, to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal, row[j+1] = row[j+1], min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Claimed reports whether the guarantees claim what the rule tests. A rule without a
// Claim is for every lock. A Rule that is not one of Rules is claimed by nobody.
func (r Rule) Claimed(g backend.Guarantees) bool {
	for _, known := range allRules {
		if known.Name == r.Name {
			return known.missing(&settings{g: g, says: true}) == nil
		}
	}
	return false
}

// missing returns the first claim that is not made, or nil.
func (r *rule) missing(s *settings) *claim {
	for i := range r.claims {
		if !r.claims[i].made(s) {
			return &r.claims[i]
		}
	}
	return nil
}

func (r *rule) limit(ttl time.Duration) time.Duration {
	return r.Limit + time.Duration(r.LimitTTLs)*ttl
}
