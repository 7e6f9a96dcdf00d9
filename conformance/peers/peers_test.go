package peers

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

var (
	update = flag.Bool("update", false, "write docs/peers.md")
	rounds = flag.Int("rounds", 1, "how often the suite is run on each peer; a rule that is both kept and broken varies")
	budget = flag.Duration("budget", 15*time.Second, "budget of a run")
)

const page = "../../docs/peers.md"

// The words of the page for what became of a rule.
const (
	keeps   = "keeps"
	breaks  = "breaks"
	varies  = "varies"
	skipped = "-"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

// outcome is what the suite found about a peer.
type outcome struct {
	words    map[string]string // by rule
	evidence map[string]string // of rules that were broken
}

// TestPage runs the suite on every peer and holds the page against it. A rule that
// the page says varies may come out either way.
func TestPage(t *testing.T) {
	found := map[string]outcome{}
	var mu sync.Mutex
	t.Run("peers", func(t *testing.T) {
		for _, p := range All() {
			t.Run(p.Name, func(t *testing.T) {
				t.Parallel()
				o := try(t, p)
				mu.Lock()
				defer mu.Unlock()
				found[p.Name] = o
			})
		}
	})
	if t.Failed() || len(found) < len(All()) {
		return // or skipped, for want of a server
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(pageOf(found)), 0o644))
		return
	}
	data, err := os.ReadFile(page)
	require.NoError(t, err)
	was := wordsOf(string(data))
	for _, r := range conformance.Rules() {
		for i, p := range All() {
			words, ok := was[r.Name]
			if !ok {
				assert.Equal(t, skipped, found[p.Name].words[r.Name], "%s is not in docs/peers.md", r.Name)
				continue
			}
			require.Len(t, words, len(All()), "docs/peers.md: %s", r.Name)
			now := found[p.Name].words[r.Name]
			if words[i] != now && words[i] != varies {
				t.Errorf("docs/peers.md says that %s %s %s; now: %s\n%s", p.Name, words[i], r.Name, now, found[p.Name].evidence[r.Name])
			}
		}
	}
}

func try(t *testing.T, p Peer) outcome {
	addr := ""
	switch p.Server {
	case "redis":
		addr = servertest.SharedRedis(t).Addr()
	case "etcd":
		addr = servertest.SharedEtcd(t).Addr()
	}
	o := outcome{map[string]string{}, map[string]string{}}
	for range *rounds {
		cfg := p.Config(addr)
		cfg.Budget = *budget
		rep, err := conformance.Check(t.Context(), cfg)
		require.NoError(t, err)
		for _, r := range rep.Results {
			word := skipped
			_, unclaimed := p.NotClaimed[r.Rule]
			if _, all := p.NotClaimed[r.Subject]; !unclaimed && !all {
				switch r.Verdict {
				case conformance.Pass, conformance.Unclaimed:
					word = keeps
				case conformance.Fail:
					word = breaks
					o.evidence[r.Rule] = r.Evidence
				}
			}
			if before, ok := o.words[r.Rule]; ok && before != word {
				word = varies
			}
			o.words[r.Rule] = word
		}
	}
	return o
}

// pageOf is docs/peers.md.
func pageOf(found map[string]outcome) string {
	var b strings.Builder
	b.WriteString(`<!-- Generated: cd conformance/peers && go test -run TestPage -update -rounds 3 -timeout 30m -->
# Peers

The conformance suite, run on locks that were not written here. It is neither a ranking nor a verdict on these libraries:
each has aims of its own, and each is a good lock on a calm day. The page shows what the suite sees when it meets a
lock for the first time, and what an adapter of some fifty lines ([conformance/peers](../conformance/peers)) is enough for.

**keeps**: no violation was seen. **breaks**: a violation was seen, below with what it was. **varies**: it depends on the
timing. **-**: the library does not promise it anywhere, or the suite has nothing to try it with.

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
	b.WriteString("\n## What was seen\n\nThe first line of the evidence, for each rule that was broken. The rules are in [conformance](conformance.md).\n")
	for _, p := range All() {
		o := found[p.Name]
		if len(o.evidence) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n**%s**\n\n", p.Name)
		for _, r := range conformance.Rules() {
			if text, ok := o.evidence[r.Name]; ok {
				first, _, _ := strings.Cut(text, "\n")
				fmt.Fprintf(&b, "- %s (%s): %s\n", r.Name, o.words[r.Name], strings.ReplaceAll(first, "<", "&lt;"))
			}
		}
	}
	return b.String()
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
