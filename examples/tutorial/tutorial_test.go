package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

var update = flag.Bool("update", false, "write the code and the outputs into docs/tutorial.md")

const pageFile = "../../docs/tutorial.md"

// TestPage plays each step on a real server and requires that its own code does harm, runs its
// rule on the flawed lock with the same mistake, and requires that code and output are those on
// the page.
func TestPage(t *testing.T) {
	server := servertest.Redis(t, servertest.WithControl()).URL() // the keys are fixed
	written, err := os.ReadFile(pageFile)
	require.NoError(t, err)
	want := string(written)

	// One after the other, since the steps share a key.
	printed := make([]string, len(steps))
	for i, s := range steps {
		var out strings.Builder
		require.NoError(t, demonstrate(s, server, &out))
		printed[i] = out.String()
		assert.Regexp(t, s.harm, printed[i], "the code of step %s does not do what its section is about", s.title)
	}
	verdicts := make([]string, len(steps))
	t.Run("rules", func(t *testing.T) {
		for i, s := range steps {
			if s.file == "" {
				continue
			}
			t.Run(s.title, func(t *testing.T) {
				t.Parallel()
				verdicts[i] = caught(t, s, server, onPage(t, want, i))
			})
		}
	})
	for i, s := range steps {
		shown, seen := onPage(t, want, i), section(t, i, printed[i], verdicts[i])
		if !*update {
			assert.Equal(t, seen, shown, "docs/tutorial.md shows something else than step %s: go test ./examples/tutorial -update", s.title)
		}
		want = strings.Replace(want, shown, seen, 1)
	}
	if *update {
		require.NoError(t, os.WriteFile(pageFile, []byte(want), 0o644))
	}
}

// caught requires that the rule catches the mistake, and returns its verdict: as it is on
// the page, where only numbers differ from what was seen. What a busy machine can hide is
// looked at again.
func caught(t *testing.T, s step, server, section string) string {
	t.Helper()
	verdict := ""
	for range 3 {
		v, err := tryRule(t.Context(), s, server)
		require.NoError(t, err)
		verdict = v
		if !strings.HasPrefix(verdict, s.flawedLock().Rule+": "+string(conformance.Fail)+"\n") {
			t.Logf("not caught: %s", verdict)
			continue
		}
		shown := section[strings.LastIndex(section, "\n\n")+2:]
		shown = strings.TrimSuffix(shown, "\n```\n"+ends(s))
		if kind(shown) == kind(verdict) {
			return shown
		}
		if *update {
			return more.ReplaceAllString(verdict, "")
		}
		t.Logf("the evidence is of another kind than on the page: %s", verdict)
	}
	require.True(t, strings.HasPrefix(verdict, s.flawedLock().Rule+": "+string(conformance.Fail)+"\n"), "the rule has not caught the mistake: %s", verdict)
	return verdict
}

var (
	more    = regexp.MustCompile(` \(and \d+ more like this\)$`)
	number  = regexp.MustCompile(`\d+(\.\d+)?(µs|ms|s)?\b`)
	request = regexp.MustCompile(`\b(TryAcquire|Acquire|Try)\b`)
	lease   = regexp.MustCompile(`, and the lease had [^)]*`)
)

// kind is a piece of evidence without its numbers, and without the request and the kind of
// lease that met it, where several can.
func kind(evidence string) string {
	evidence = lease.ReplaceAllString(more.ReplaceAllString(evidence, ""), "")
	return request.ReplaceAllString(number.ReplaceAllString(evidence, "N"), "Try")
}

func begins(s step) string {
	return "<!-- " + s.name() + " begins: go test ./examples/tutorial -update -->\n"
}

func ends(s step) string { return "<!-- " + s.name() + " ends -->\n" }

func (s step) name() string { n, _, _ := strings.Cut(s.title, "."); return "step " + n }

// onPage is the generated part of the step's section, which must have the step's title.
func onPage(t *testing.T, page string, i int) string {
	t.Helper()
	s := steps[i]
	_, rest, ok := strings.Cut(page, "\n## "+s.title+"\n")
	require.True(t, ok, "docs/tutorial.md has no section %s", s.title)
	body, _, _ := strings.Cut(rest, "\n## ")
	from, to := strings.Index(body, begins(s)), strings.Index(body, ends(s))
	require.True(t, from >= 0 && to > from, "the section %s has lost its marks, %sand %s", s.title, begins(s), ends(s))
	return body[from : to+len(ends(s))]
}

// section is what is generated: the code as it is compiled, without its imports, and what
// it printed.
func section(t *testing.T, i int, printed, verdict string) string {
	t.Helper()
	played := runtime.FuncForPC(reflect.ValueOf(steps[i].play).Pointer())
	file, _ := played.FileLine(played.Entry())
	source, err := os.ReadFile(filepath.Base(file))
	require.NoError(t, err)
	code := regexp.MustCompile(`(?s)^package main\n\n(import \(.*?\n\)\n\n|import [^\n]*\n\n)?`).ReplaceAllString(string(source), "")
	var b strings.Builder
	fmt.Fprintf(&b, "%s```go\n%s```\n\n", begins(steps[i]), code)
	if verdict == "" {
		fmt.Fprintf(&b, "```text\n%s```\n", printed)
	} else {
		fmt.Fprintf(&b, "```text\n%s\n%s\n```\n", printed, verdict)
	}
	return b.String() + ends(steps[i])
}

// TestTheRestOfThePage requires that only what is generated shows code and outputs, and that
// the rest has a section for each step and explains helpers that the code has.
func TestTheRestOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(pageFile)
	require.NoError(t, err)
	rest, generated := string(page), ""
	var titles, sections []string
	for i, s := range steps {
		part := onPage(t, string(page), i)
		rest, generated = strings.Replace(rest, part, "", 1), generated+part
		titles = append(titles, s.title)
	}
	if strings.Contains(rest, "```") { // to show the page helps nobody
		t.Error("docs/tutorial.md shows code, or an output, that nobody compares")
	}
	for _, m := range regexp.MustCompile(`(?m)^## (\d+\. .*)$`).FindAllStringSubmatch(rest, -1) {
		sections = append(sections, m[1])
	}
	assert.Equal(t, titles, sections)
	helpers := regexp.MustCompile("(?m)^- `([\\w.]+[\\[(])").FindAllStringSubmatch(rest, -1)
	require.Len(t, helpers, 3)
	for _, m := range helpers {
		if !strings.Contains(generated, m[1]) {
			t.Errorf("docs/tutorial.md explains %s, which no step has", m[1])
		}
	}
}

// TestEachStepNamesItsLock requires that each section links to the flawed lock and to the
// rule that catches it.
func TestEachStepNamesItsLock(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(pageFile)
	require.NoError(t, err)
	collection, err := os.ReadFile("../../docs/flawed-locks.md")
	require.NoError(t, err)
	subjects := map[string]string{}
	for _, r := range conformance.Rules() {
		subjects[r.Name] = r.Subject
	}
	for i, s := range steps {
		if s.file == "" {
			continue
		}
		_, rest, _ := strings.Cut(string(page), onPage(t, string(page), i))
		rest, _, _ = strings.Cut(rest, "\n## ")
		l := s.flawedLock()
		file := regexp.MustCompile(`\(\.\./(conformance/flawed/\S*/?` + regexp.QuoteMeta(s.file) + `)\)`)
		m := file.FindStringSubmatch(rest)
		if assert.NotNil(t, m, "the section %s has no link to %s", s.title, s.file) {
			assert.FileExists(t, filepath.Join("..", "..", filepath.FromSlash(m[1])))
			assert.Contains(t, string(collection), m[1])
		}
		assert.Contains(t, rest, fmt.Sprintf("[%s](conformance.md#%s)", l.Rule, subjects[l.Rule]), "the section %s", s.title)
	}
}
