package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
	"github.com/mortiselock/lock/conformance/internal/rules"
)

// Verdict is the outcome in a few sentences: which failure to look at first, or what was
// kept, which claims and rules were not tried although they apply, and which deviations
// are declared.
func (r Report) Verdict() string {
	c := r.Counts()
	switch {
	case r.Incomplete != "" && c.Fail > 0:
		return fmt.Sprintf("Incomplete: %s. Before that: %s", r.Incomplete, r.broken())
	case r.Incomplete != "":
		return fmt.Sprintf("Incomplete: %s. What was not tried by then says nothing.", r.Incomplete)
	case c.Fail > 0 && c.Inconclusive > 0:
		return r.broken() + r.undecided()
	case c.Fail > 0:
		return r.broken()
	case c.Inconclusive > 0:
		return fmt.Sprintf("No rule was broken, but this machine or the server was too slow for a verdict on: %s. Try again when it is calmer, or with a longer TTL.",
			strings.Join(r.with(Inconclusive), ", "))
	case c.Pass == 0:
		return "Nothing was proved: no rule could be tried."
	}
	var said []string
	for _, u := range r.UntriedClaims() {
		said = append(said, u.String()+".")
	}
	if said == nil {
		said = append(said, "Every claim that could be tried was kept.")
	} else {
		said = append(said, "Every other claim was kept.")
	}
	said = append(said, r.deviations()...)
	return strings.Join(append(said, r.untried()...), " ")
}

// deviations names what the lock is declared not to keep: what it was seen to keep apart.
func (r Report) deviations() (said []string) {
	var names, kept []string
	for _, x := range r.Results {
		switch {
		case x.Verdict != Deviation:
		case strings.HasSuffix(x.Evidence, engine.KeptAllTheSame):
			kept = append(kept, x.Rule)
		default:
			names = append(names, x.Rule)
		}
	}
	if len(names) > 0 {
		said = append(said, "Declared deviations: "+strings.Join(names, ", ")+".")
	}
	if len(kept) > 0 {
		said = append(said, "Declared, and kept all the same: "+strings.Join(kept, ", ")+".")
	}
	return said
}

// hook is what a reason names that the Config lacks.
var hook = regexp.MustCompile(`\bConfig\.\w+`)

// untried has a sentence for each thing that is missing, with the rules that need it, and one
// for what is missing otherwise.
func (r Report) untried() (said []string) {
	var missing []string
	names := map[string][]string{}
	for _, x := range r.Results {
		if x.Verdict != Skipped || x.inapplicable() {
			continue
		}
		what := hook.FindString(firstLine(x.Evidence))
		if names[what] == nil {
			missing = append(missing, what)
		}
		names[what] = append(names[what], x.Rule)
	}
	for _, what := range missing {
		if n := len(names[what]); what == "Config.OpenBackend" && n > 1 { // which a finished Locker can't have
			said = append(said, fmt.Sprintf("%d rules for backends were not tried, for want of %s.", n, what))
			continue
		}
		reason := ""
		if what != "" {
			reason = " for want of " + what
		}
		said = append(said, fmt.Sprintf("Not tried%s: %s.", reason, strings.Join(names[what], ", ")))
	}
	return said
}

// broken says how many rules were broken, and which to look at first: the one of the lowest
// rank, and of several the first in the list of rules, which goes from what everything rests
// on to the particular. A claim that this denies is named.
func (r Report) broken() string {
	var first Result
	n := 0
	for _, x := range r.Results {
		if x.Verdict == Fail {
			if n++; n == 1 || x.rank() < first.rank() {
				first = x
			}
		}
	}
	claims := ""
	if names := r.claimsOf(first.Rule); len(names) > 0 {
		claims = " (of a lock that claims " + strings.Join(names, ", ") + ")"
	}
	if n == 1 {
		return fmt.Sprintf("1 rule was broken: %s%s.", first.Rule, claims)
	}
	return fmt.Sprintf("%d rules were broken; look at %s first%s.", n, first.Rule, claims)
}

// undecided names, beside failures, the rules that were inconclusive. Of those that were not tried to
// their end because another one had failed, it says how many there are.
func (r Report) undecided() (said string) {
	names, givenUp := []string{}, 0
	for _, x := range r.Results {
		switch {
		case x.Verdict != Inconclusive:
		case strings.Contains(firstLine(x.Evidence), engine.SinceAnotherFailed):
			givenUp++
		default:
			names = append(names, x.Rule)
		}
	}
	if len(names) > 0 {
		said = fmt.Sprintf(" Inconclusive, for the reason that is given with each: %s.", strings.Join(names, ", "))
	}
	switch {
	case givenUp == 1:
		said += " 1 more was given up then."
	case givenUp > 1:
		said += fmt.Sprintf(" %d more were given up then.", givenUp)
	}
	return said
}

// rank is low for what explains other failures. Two holders of a key are the worst. Where
// holders that keep to their time exclude each other, a release of another's hold is often the cause.
// A loss that no context tells is told wrongly by all else. What is said, in errors and of keys,
// explains nothing else.
func (x Result) rank() int {
	switch {
	case x.Rule == "Exclusive", x.Rule == "ExclusiveAcrossProcesses":
		return 0
	case x.Rule == "ReleaseOwnOnly":
		return 1
	case strings.HasPrefix(x.Rule, "Exclusive"), x.Rule == "LostByDeadline":
		return 2
	case x.Subject == "errors", x.Subject == "keys":
		return 4
	}
	return 3
}

// ClaimReach is the Claim of an UntriedClaim about Guarantees.Reach.
const ClaimReach = "Reach"

// UntriedClaim is something that the guarantees claim and that the run has not tried.
type UntriedClaim struct {
	// Claim names the field of the guarantees, such as ClaimReach.
	Claim string `json:"claim"`
	// Value is what is claimed, where the name does not say it: "network".
	Value string `json:"value,omitempty"`
	// Reason is what is missing.
	Reason string `json:"reason"`
}

// String is a sentence without its full stop.
func (u UntriedClaim) String() string {
	claim := u.Claim
	if u.Value != "" {
		claim += fmt.Sprintf(" %q", u.Value)
	}
	return fmt.Sprintf("The claim %s was not tried (%s)", claim, u.Reason)
}

// UntriedClaims are the claims that were to be tried by the rules of the run, all of which
// were skipped. Nothing is known of them: a claim that was not tried is not a pass. It
// says nothing of what Config.Only has left out.
func (r Report) UntriedClaims() []UntriedClaim {
	var out []UntriedClaim
	reasons, judged := map[string]string{}, map[string]bool{}
	for _, x := range r.Results {
		for _, claim := range r.claimsOf(x.Rule) {
			switch {
			case x.Verdict == Skipped && !x.inapplicable():
				if _, known := reasons[claim]; !known {
					reasons[claim] = x.Evidence
					out = append(out, UntriedClaim{Claim: claim})
				}
			case x.Verdict == Pass, x.Verdict == Fail, x.Verdict == Inconclusive, x.Verdict == Deviation:
				judged[claim] = true
			}
		}
	}
	out = slices.DeleteFunc(out, func(u UntriedClaim) bool { return judged[u.Claim] })
	for i, u := range out {
		out[i].Reason = firstLine(reasons[u.Claim])
		if u.Claim == ClaimReach {
			out[i].Value = string(r.Guarantees.Reach)
		}
	}
	return out
}

// claimsOf are the claims that the guarantees make and that the rule tries.
func (r Report) claimsOf(rule string) []string {
	if rule == "ExclusiveAcrossProcesses" {
		if r.Guarantees.Reach == "" || r.Guarantees.Reach == backend.ReachProcess {
			return nil
		}
		return []string{ClaimReach}
	}
	var names []string
	for _, known := range rules.All {
		if known.Name != rule {
			continue
		}
		for _, c := range known.Claims {
			if c.Made(&engine.Settings{Claimed: r.Guarantees}) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

// inapplicable begins the reasons of rules that say nothing about the lock at all.
var inapplicable = []string{
	"does not apply", "the backend does not implement ", "the lock reaches one process only", "the guarantees exclude nothing ",
	"needs two TTLs, and only ", "needs several TTLs, and only ",
}

func (x Result) inapplicable() bool {
	return slices.ContainsFunc(inapplicable, func(reason string) bool { return strings.HasPrefix(x.Evidence, reason) })
}

// Untried names the rules that apply to the lock and were not tried. What they demand was
// not proved.
func (r Report) Untried() []string {
	var names []string
	for _, x := range r.Results {
		if x.Verdict == Skipped && !x.inapplicable() {
			names = append(names, x.Rule)
		}
	}
	return names
}

// with names the rules with the verdict.
func (r Report) with(v Verdict) []string {
	var names []string
	for _, x := range r.Results {
		if x.Verdict == v {
			names = append(names, x.Rule)
		}
	}
	return names
}

func firstLine(s string) string {
	first, _, _ := strings.Cut(s, "\n")
	return first
}
