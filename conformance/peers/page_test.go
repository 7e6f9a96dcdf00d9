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
	keeps   = "keeps"
	breaks  = "breaks"
	varies  = "varies"
	skipped = "-"
)

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

func (o *outcome) add(p Peer, r conformance.Result) {
	word := skipped
	_, unclaimed := p.NotClaimed[r.Rule]
	if _, all := p.NotClaimed[r.Subject]; !unclaimed && !all {
		switch r.Verdict {
		case conformance.Pass:
			word = keeps
		case conformance.Fail:
			word = breaks
			o.evidence[r.Rule] = r.Evidence
			o.broken[r.Rule]++
		}
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

The conformance suite, run on locks that were not written here. It is neither a ranking nor a verdict on these libraries:
each has aims of its own, and each is a good lock on a calm day. The page shows what the suite sees when it meets a
lock for the first time, and what an adapter of some fifty lines ([conformance/peers](../conformance/peers)) is enough for.

**keeps**: no violation was seen in any round. **breaks**: a violation was seen in every round, below with what it was.
**varies**: it was seen in some of them, below with how many, since it depends on the timing. **-**: the library does not promise it anywhere,
or the suite has nothing to try it with. `)
	fmt.Fprintf(&b, "%sThe suite was run %d times on each.%s", roundsBegin, rounds, roundsEnd)
	b.WriteString(` CI runs it again, and fails when the page has become
wrong: when a rule that is kept here is broken in every of several rounds, or a violation that is shown here is met in none of them.

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
		tried := false
		for _, o := range found {
			tried = tried || o.words[r.Name] != skipped
		}
		if !tried {
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
	b.WriteString(evidenceHeading + "\nThe first line of the evidence, for each rule that was broken. The rules are in [conformance](conformance.md).\n")
	for _, p := range All() {
		b.WriteString(evidenceOf(p, found[p.Name], rounds))
	}
	return b.String()
}

func evidenceOf(p Peer, o *outcome, rounds int) string {
	if len(o.evidence) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n**%s**\n\n", p.Name)
	for _, r := range conformance.Rules() {
		text, ok := o.evidence[r.Name]
		if !ok {
			continue
		}
		how := o.words[r.Name]
		if how == varies {
			how += fmt.Sprintf(", %d of %d rounds", o.broken[r.Name], rounds)
		}
		fmt.Fprintf(&b, "- %s (%s): %s\n", r.Name, how, firstOf(text))
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
			case keeps, breaks, varies, skipped:
				words = append(words, c)
			}
		}
		if len(words) == len(All()) {
			out[name] = words
		}
	}
	return out
}
