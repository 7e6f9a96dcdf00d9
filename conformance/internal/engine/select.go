package engine

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// selectRules returns the rules that are named, or whose subject is named.
func selectRules(all []*Rule, only []string) ([]*Rule, error) {
	if len(only) == 0 {
		return all, nil
	}
	var out []*Rule
	used := map[string]bool{}
	for _, r := range all {
		if slices.Contains(only, r.Name) || slices.Contains(only, r.Subject) {
			out = append(out, r)
			used[r.Name], used[r.Subject] = true, true
		}
	}
	for _, name := range only {
		if !used[name] {
			return nil, fmt.Errorf("conformance: %w", unknownRule(all, name))
		}
	}
	return out, nil
}

func unknownRule(all []*Rule, name string) error {
	hint := ""
	if near := nearest(all, name); changes(strings.ToLower(name), strings.ToLower(near)) <= len(name)/2 {
		hint = "did you mean " + near + "? If not, "
	}
	return fmt.Errorf("%q is neither a rule nor a subject of rules; %sthe subjects are %s", name, hint, strings.Join(subjects(all), ", "))
}

// Nothing can deviate from what makes it a lock: the subject exclusion as a whole, and its
// rules with such names.
const (
	exclusion     = "exclusion"
	exclusiveRule = "Exclusive"
)

// checkDeviations checks that the declared deviations are of rules that there are, and
// have reasons.
func checkDeviations(all []*Rule, declared map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		known := false
		for _, r := range all {
			if r.Name != name && r.Subject != name {
				continue
			}
			known = true
			if name == exclusion || strings.HasPrefix(name, exclusiveRule) {
				return fmt.Errorf("conformance: Config.Deviations: %q cannot be declared: what lets two hold a key at a time is no lock", name)
			}
		}
		switch {
		case !known:
			return fmt.Errorf("conformance: Config.Deviations: %w", unknownRule(all, name))
		case strings.TrimSpace(declared[name]) == "":
			return fmt.Errorf("conformance: Config.Deviations: %q has no reason; say in a few words what the lock does instead", name)
		}
	}
	return nil
}

// deviation is the reason for which the lock is not meant to keep the rule.
func (s *Settings) deviation(r *Rule) (reason string, declared bool) {
	if reason, declared = s.Deviations[r.Name]; !declared {
		reason, declared = s.Deviations[r.Subject]
	}
	if !declared && r.RestsOn != "" {
		reason, declared = s.Deviations[r.RestsOn]
	}
	return reason, declared
}

// subjects lists the subjects in the order of the rules.
func subjects(all []*Rule) []string {
	var out []string
	for _, r := range all {
		if !slices.Contains(out, r.Subject) {
			out = append(out, r.Subject)
		}
	}
	return out
}

// nearest is the rule or the subject that the fewest changes of a letter make of name.
func nearest(all []*Rule, name string) string {
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
