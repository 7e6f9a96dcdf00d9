// Package rules has the rules of the suite, one file a subject. Each file begins with the
// table of its rules; what a rule does is the function that Run names. A subject with
// many rules goes on in files that begin with its name.
//
// The tests have mutants, each with the rules that must fail on it: of backends in
// backends_test.go, of Lockers in lockers_test.go, of the policy in policies_test.go, of
// where two things meet in combinations_test.go, of numbers and characters in
// details_test.go, of what is right the first time or for a while in later_test.go, of what
// faults, a network or other processes show in the files of those names.
package rules

import "github.com/mortiselock/lock/conformance/internal/engine"

// All lists every rule in the order in which cases start.
var All = engine.Complete(
	subject("exclusion", exclusionRules),
	subject("release", releaseRules),
	subject("expiry", expiryRules),
	subject("renewal", renewalRules),
	subject("waiting", waitingRules),
	subject("loss", lossRules),
	subject("tokens", tokenRules),
	subject("reentrancy", reentrancyRules),
	subject("processes", processRules),
	subject("keys", keyRules),
	subject("errors", errorRules),
	subject("close", closeRules),
	subject("network", networkRules),
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
