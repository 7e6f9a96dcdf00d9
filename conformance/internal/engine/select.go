package engine

import (
	"fmt"
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
			return nil, fmt.Errorf("conformance: %q is neither a rule nor a subject of rules; did you mean %s? The subjects are %s", name, nearest(all, name), strings.Join(subjects(all), ", "))
		}
	}
	return out, nil
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
