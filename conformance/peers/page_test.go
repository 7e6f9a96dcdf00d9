package peers

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mortiselock/lock/conformance"
)

// The words of the page for what became of a rule.
const (
	keeps      = "keeps"
	breaks     = "breaks"
	varies     = "varies"
	notClaimed = "not claimed"
	skipped    = "-"
	undecided  = "undecided"
	unlisted   = "not listed"
)

// tried reports whether a word tells what came of a rule that was tried.
func tried(word string) bool { return word == keeps || word == breaks || word == varies }

const (
	roundsBegin     = "<!-- rounds -->"
	roundsEnd       = "<!-- /rounds -->"
	evidenceHeading = "\n## What was seen\n"
)

// outcome is what the suite found about a peer, by rule.
type outcome struct {
	words    map[string]string
	tried    map[string]int    // in how many rounds
	evidence map[string]string // of the last violation
	broken   map[string]int    // in how many rounds
}

func newOutcome() *outcome {
	return &outcome{map[string]string{}, map[string]int{}, map[string]string{}, map[string]int{}}
}

// word is what became of the rule in all rounds.
func (o *outcome) word(rule string) string { return cmp.Or(o.words[rule], undecided) }

// contradicts reports whether every round that decided about the rule says otherwise than
// the page, which does not list rules that were tried on no peer.
func (o *outcome) contradicts(rule, page string) bool {
	now := o.word(rule)
	switch {
	case now == page, now == varies, now == undecided:
		return false
	case page == undecided, page == varies:
		return !tried(now)
	case page == unlisted:
		return tried(now)
	}
	return true
}

func (o *outcome) add(r conformance.Result) {
	word := skipped
	switch r.Verdict {
	case conformance.Inconclusive:
		return // the machine was too slow, which says nothing of the library
	case conformance.NotClaimed, conformance.Unclaimed, conformance.Deviation:
		word = notClaimed
	case conformance.Pass:
		word = keeps
	case conformance.Fail:
		word = breaks
		o.evidence[r.Rule] = r.Evidence
		o.broken[r.Rule]++
	}
	o.tried[r.Rule]++
	switch before := o.word(r.Rule); {
	case before == undecided, before == skipped, before == word:
	case word == skipped:
		word = before
	default:
		word = varies
	}
	o.words[r.Rule] = word
}

// pageOf is docs/peers.md.
func pageOf(found map[string]*outcome, rounds int) string {
	var b strings.Builder
	b.WriteString(`<!-- Generated: cd conformance/peers && go test -run TestPage -update -rounds 5 -timeout 30m -->
# Peers

The [suite](conformance.md), run on locks of others through short [adapters](../conformance/peers). Settings, but for
the TTL, are those of the library's README or examples. It is no ranking: each has aims of its own.

*Keeps* means that no round saw a violation, *breaks* that every round did, *varies* that some did, and *undecided* that
the machine was too slow. *Not claimed* is what the library does not promise, for [these
reasons](../conformance/peers/list.go). With a dash there is nothing to try it with, such as a lease that is not
renewed. Rules that none of these locks can be tried with are left out.

`)
	fmt.Fprintf(&b, "%sThe suite was run %d times on each.%s", roundsBegin, rounds, roundsEnd)
	b.WriteString(` CI fails when several rounds all contradict this page.

| Library | Version | Server | What the adapter does |
|---|---|---|---|
`)
	for _, p := range All() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.Name, p.Version, p.Server, p.Adapter)
	}
	b.WriteString("\n## The rules\n\n| Rules |")
	for _, p := range All() {
		fmt.Fprintf(&b, " %s |", short(p))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(All())) + "\n")
	var rows []string
	alike := map[string][]string{}
	for _, r := range conformance.Rules() {
		if !slices.ContainsFunc(All(), func(p Peer) bool { w := found[p.Name].word(r.Name); return tried(w) || w == undecided }) {
			continue
		}
		row := ""
		for _, p := range All() {
			row += " | " + found[p.Name].word(r.Name)
		}
		if alike[row] == nil {
			rows = append(rows, row)
		}
		alike[row] = append(alike[row], r.Name)
	}
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s%s |\n", strings.Join(alike[row], ", "), row)
	}
	b.WriteString(evidenceHeading + "\nThe broken [rules](conformance.md#the-rules), what the library promises, and what was seen of one of them.\n")
	for _, p := range All() {
		b.WriteString(evidenceOf(p, found[p.Name], rounds))
	}
	return b.String()
}

func evidenceOf(p Peer, o *outcome, rounds int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n", p.Name)
	if len(o.evidence) == 0 {
		b.WriteString("Nothing that it promises was broken.\n")
	}
	for _, g := range together(o.evidence, func(rule string) string { return p.Breaks[rule] }) {
		fmt.Fprintf(&b, "- %s: %s.\n  Seen: %s\n", o.howOften(g.rules, rounds), g.text, oneOf(o.evidence, g.rules))
	}
	return b.String()
}

// howOften names the rules, and says in how many rounds they were broken.
func (o *outcome) howOften(rules []string, rounds int) string {
	names := "**" + strings.Join(rules, "**, **") + "**"
	if !slices.ContainsFunc(rules, func(rule string) bool { return o.words[rule] == varies }) {
		return names + " (" + o.words[rules[0]] + ")"
	}
	var broken []int
	for _, rule := range rules {
		broken = append(broken, o.broken[rule])
	}
	times := fmt.Sprint(slices.Min(broken))
	if most := slices.Max(broken); most > slices.Min(broken) {
		times += fmt.Sprintf(" to %d", most)
	}
	return fmt.Sprintf("%s (%s, %s of %d rounds)", names, varies, times, rounds)
}

// group is rules of which the page says the same.
type group struct {
	text  string
	rules []string
}

// together groups the rules of which there is evidence by what the page says of them.
func together(evidence map[string]string, says func(rule string) string) (groups []group) {
	for _, r := range conformance.Rules() {
		if _, ok := evidence[r.Name]; !ok {
			continue
		}
		at := slices.IndexFunc(groups, func(g group) bool { return g.text == says(r.Name) })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group{text: says(r.Name)})
		}
		groups[at].rules = append(groups[at].rules, r.Name)
	}
	return groups
}

// oneOf is the first line of the evidence of one of the rules, if possible of one whose case
// did not just take too long.
func oneOf(evidence map[string]string, rules []string) string {
	for _, rule := range rules {
		if first := firstOf(evidence[rule]); !strings.HasPrefix(first, "the case did not end") {
			return first
		}
	}
	return firstOf(evidence[rules[0]])
}

var (
	instants = regexp.MustCompile(`^at [0-9.]+ s: `)
	runs     = regexp.MustCompile(`conformance/[0-9a-f]{8}/`)
)

// firstOf is the first line of the evidence, without what is of one run only, without a list
// of calls that hang, and without what was expected, which the rule says.
func firstOf(evidence string) string {
	first, _, _ := strings.Cut(evidence, "\n")
	first, _, _ = strings.Cut(first, " (The lease that stood in the way")
	first, _, _ = strings.Cut(first, ". Calls that had not returned: client ")
	first, _, _ = strings.Cut(first, "; expected ")
	first = runs.ReplaceAllString(instants.ReplaceAllString(first, ""), "")
	return strings.ReplaceAll(first, "<", "&lt;")
}

// short is the last part of the import path that says something.
func short(p Peer) string { return p.Guarantees.Name }

// wordsOf reads the tables of the page.
func wordsOf(text string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != len(All())+1 {
			continue
		}
		var words []string
		for _, c := range cells[1:] {
			switch c = strings.TrimSpace(c); c {
			case keeps, breaks, varies, notClaimed, skipped, undecided:
				words = append(words, c)
			}
		}
		if len(words) == len(All()) {
			for rule := range strings.SplitSeq(strings.TrimSpace(cells[0]), ", ") {
				out[rule] = words
			}
		}
	}
	return out
}
