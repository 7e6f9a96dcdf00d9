package peers

import (
	"fmt"
	"maps"
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
	without  map[string]string // what was seen of rules that the library does not promise
}

func newOutcome() *outcome {
	return &outcome{map[string]string{}, map[string]int{}, map[string]string{}, map[string]int{}, map[string]string{}}
}

func (o *outcome) add(p Peer, r conformance.Result) {
	word := skipped
	_, rule := p.NotClaimed[r.Rule]
	_, subject := p.NotClaimed[r.Subject]
	switch {
	case r.Verdict == conformance.Skipped:
	case rule, subject, r.Verdict == conformance.NotClaimed, r.Verdict == conformance.Unclaimed:
		word = notClaimed
		if rule && r.Verdict == conformance.Fail {
			o.without[r.Rule] = r.Evidence
		}
	case r.Verdict == conformance.Pass:
		word = keeps
	case r.Verdict == conformance.Fail:
		word = breaks
		o.evidence[r.Rule] = r.Evidence
		o.broken[r.Rule]++
	}
	o.tried[r.Rule]++
	if before, ok := o.words[r.Rule]; ok && before != word {
		word = varies
	}
	o.words[r.Rule] = word
}

// pageOf is docs/peers.md.
func pageOf(found map[string]*outcome, rounds int) string {
	var b strings.Builder
	b.WriteString(`<!-- Generated: cd conformance/peers && go test -run TestPage -update -rounds 5 -timeout 30m -->
# Peers

The conformance suite, run on locks that were not written here, through [adapters](../conformance/peers) of some fifty lines.
It is neither a ranking nor a verdict: each has aims of its own, and each is a good lock on a calm day.

| In the tables | |
|---|---|
| keeps | no violation was seen in any round |
| breaks | a violation was seen in every round; [below](#what-was-seen) is what it was, and what the library promises |
| varies | a violation was seen in some of the rounds, since it depends on the timing |
| not claimed | the library promises it nowhere, so it is not counted; the reasons stand below the libraries |
| - | the suite has nothing to try it with, such as a lease that is not renewed where the library always renews |

A rule that only the adapter could break is no break here. Rules in no table were not tried. They are about what none
of these locks has (re-entry, a deadline, details of the holder), or take several processes, a backend of this module,
guarded writes, or a whole history of calls.

`)
	fmt.Fprintf(&b, "%sThe suite was run %d times on each.%s", roundsBegin, rounds, roundsEnd)
	b.WriteString(` CI runs it again, and fails when several rounds all
contradict the page.

| Library | Version | Server | What the adapter does |
|---|---|---|---|
`)
	for _, p := range All() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.Name, p.Version, p.Server, p.Adapter)
	}
	b.WriteString("\nNot claimed, and so not counted:\n\n")
	for _, p := range All() {
		for _, rule := range slices.Sorted(maps.Keys(p.NotClaimed)) {
			fmt.Fprintf(&b, "- %s: %s: %s\n", short(p), rule, p.NotClaimed[rule])
		}
	}
	subject := ""
	for _, r := range conformance.Rules() {
		if !slices.ContainsFunc(All(), func(p Peer) bool { return tried(found[p.Name].words[r.Name]) }) {
			continue
		}
		if r.Subject != subject {
			subject = r.Subject
			fmt.Fprintf(&b, "\n## %s\n\n| Rule |", strings.ToUpper(subject[:1])+subject[1:])
			for _, p := range All() {
				fmt.Fprintf(&b, " %s |", short(p))
			}
			b.WriteString("\n|---|" + strings.Repeat("---|", len(All())) + "\n")
		}
		fmt.Fprintf(&b, "| %s |", r.Name)
		for _, p := range All() {
			fmt.Fprintf(&b, " %s |", found[p.Name].words[r.Name])
		}
		b.WriteString("\n")
	}
	b.WriteString(evidenceHeading + "\nEach [rule](conformance.md#the-rules) that was broken: what it was, what the library promises, and the first line of the\n" +
		"evidence. Then, of rules that a library does not promise, what the suite saw when it tried them all the same.\n")
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
	for _, r := range conformance.Rules() {
		text, ok := o.evidence[r.Name]
		if !ok {
			continue
		}
		how := o.words[r.Name]
		if how == varies {
			how += fmt.Sprintf(", %d of %d rounds", o.broken[r.Name], rounds)
		}
		fmt.Fprintf(&b, "- **%s** (%s): %s. Seen: %s\n", r.Name, how, p.Breaks[r.Name], firstOf(text))
	}
	if len(o.without) > 0 {
		b.WriteString("\nNot promised:\n\n")
	}
	for _, r := range conformance.Rules() {
		if text, ok := o.without[r.Name]; ok {
			fmt.Fprintf(&b, "- %s: %s\n", r.Name, firstOf(text))
		}
	}
	return b.String()
}

var (
	instants = regexp.MustCompile(`^at [0-9.]+ s: `)
	runs     = regexp.MustCompile(`conformance/[0-9a-f]{8}/`)
)

// firstOf is the first line of the evidence, without what is of one run only.
func firstOf(evidence string) string {
	first, _, _ := strings.Cut(evidence, "\n")
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
		name := strings.TrimSpace(cells[0])
		var words []string
		for _, c := range cells[1:] {
			switch c = strings.TrimSpace(c); c {
			case keeps, breaks, varies, notClaimed, skipped:
				words = append(words, c)
			}
		}
		if len(words) == len(All()) {
			out[name] = words
		}
	}
	return out
}
