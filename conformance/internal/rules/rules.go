// Package rules has the rules of the suite, one file a subject. Each file begins with the
// table of its rules; what a rule does is the function that Run names. A subject with
// many rules goes on in files that begin with its name.
package rules

import "github.com/mortiselock/lock/conformance/internal/engine"

// All lists every rule in the order in which cases start.
var All = engine.Complete(
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

// subject puts a subject on its rules.
func subject(name string, rules []*engine.Rule) []*engine.Rule {
	for _, r := range rules {
		r.Subject = name
	}
	return rules
}
