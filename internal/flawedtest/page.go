package flawedtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

const pageFile = "docs/flawed-locks.md"

const updateCommand = "go test -p 1 ./conformance/flawed/... -run TestFlawed -update"

const pageHead = `# Flawed locks

Locks as people write them, in the order in which the mistakes are met, each with what goes wrong, what to do
instead, and what the [conformance suite](conformance.md) says about it. Each is a short file to read. A test
requires that the suite catches every one of them, by the rule that is named here, and that the same lock without
the mistake passes:

    go test -v -run 'TestFlawed|TestHealthy' ./conformance/flawed/...

This page is generated from such a run: ` + "`" + updateCommand + "`" + `. The
reports are shortened; times are in seconds since the case began.
`

// part is the part of the page about one collection.
type part struct{ dir, title, intro string }

// parts are in the order in which people come to the servers.
var parts = []part{
	{"conformance/flawed", "One server", "Most mistakes need one server only. They are made here on Redis, on a table and on files in memory " +
		"that stand for those of a database and of a disk, and around a lock that is right."},
	{"conformance/flawed/mysqlflawed", "A table in a database", "What the SQL and the driver add, on MariaDB."},
	{"conformance/flawed/rowflawed", "A locked row", "`SELECT ... FOR UPDATE` binds a hold to a connection."},
	{"conformance/flawed/redlockflawed", "A majority of servers", "Redlock, on several independent Redis servers."},
	{"conformance/flawed/etcdflawed", "Leases of etcd", "A hold is bound to a lease, and waiters stand in a queue on the server."},
	{"conformance/flawed/zkflawed", "Sessions of ZooKeeper", "A hold is bound to a session, which the server ends when it likes."},
}

func (p part) begins() string { return "<!-- " + filepath.Base(p.dir) + " begins -->\n" }
func (p part) ends() string   { return "<!-- " + filepath.Base(p.dir) + " ends -->\n" }

// cut returns what stands between the marks of the part.
func (p part) cut(page string) (before, body, after string, ok bool) {
	before, rest, there := strings.Cut(page, p.begins())
	body, after, ended := strings.Cut(rest, p.ends())
	return before, body, after, there && ended
}

// WritePage writes the collection's part of the page from the reports of this run, if
// the flag -update is given. One package at a time may do so.
func (c *Collection) WritePage(t *testing.T) {
	t.Helper()
	if !*update {
		return
	}
	for _, m := range c.mistakes {
		require.NotEmpty(t, c.reports[m.File], "%s was not caught by %s; nothing was written", m.Title, m.Rule)
	}
	file := locate(t)
	old, err := os.ReadFile(file)
	require.NoError(t, err)
	page := pageHead
	for _, p := range parts {
		_, body, _, _ := p.cut(string(old))
		if p == c.part {
			body = c.write(page, c.reports)
		}
		page += fmt.Sprintf("\n## %s\n\n%s%s%s", p.title, p.begins(), body, p.ends())
	}
	require.NoError(t, os.WriteFile(file, []byte(renumber(page)), 0o644))
}

var heading = regexp.MustCompile(`(?m)^### \d+\. `)

// renumber counts the locks on the whole page.
func renumber(page string) string {
	n := 0
	return heading.ReplaceAllStringFunc(page, func(string) string {
		n++
		return fmt.Sprintf("### %d. ", n)
	})
}

// CheckPage requires that the page tells what the collection holds today. The reports
// in it are those of the run that wrote it; what they say differs from run to run, but
// not how it is worded.
func (c *Collection) CheckPage(t *testing.T) {
	t.Helper()
	if *update {
		t.Skip("the page is being written")
	}
	text, err := os.ReadFile(locate(t))
	require.NoError(t, err)
	before, body, _, ok := c.part.cut(string(text))
	require.True(t, ok && strings.HasPrefix(before, pageHead), "%s is stale: %s", pageFile, updateCommand)
	reports, known := map[string]string{}, wordings(t)
	for _, m := range c.mistakes {
		_, rest, ok := strings.Cut(body, c.link(m))
		require.True(t, ok, "%s is not on the page: %s", m.File, updateCommand)
		_, rest, _ = strings.Cut(rest, "```text\n")
		report, _, ok := strings.Cut(rest, "```\n")
		require.True(t, ok && strings.TrimSpace(report) != "", "the page has no report about %s", m.File)
		requireWording(t, m, report, known)
		reports[m.File] = report
	}
	require.Equal(t, c.write(before, reports), body, "%s is stale: %s", pageFile, updateCommand)
}

func (c *Collection) link(m Mistake) string { return "(../" + c.part.dir + "/" + m.File + ")" }

// write makes the part. The locks before it on the page are counted.
func (c *Collection) write(before string, reports map[string]string) string {
	statements := map[string]string{}
	for _, r := range conformance.Rules() {
		statements[r.Name] = r.Statement
	}
	n := len(heading.FindAllString(before, -1))
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", c.part.intro)
	for i, m := range c.mistakes {
		fmt.Fprintf(&b, "\n### %d. %s\n\n", n+i+1, upper(m.Title))
		fmt.Fprintf(&b, "%s\n\n", sentence(m.Summary))
		fmt.Fprintf(&b, "- **Seen:** %s\n", sentence(m.Seen))
		fmt.Fprintf(&b, "- **Instead:** %s\n", sentence(m.Instead))
		fmt.Fprintf(&b, "- **Caught by** `%s`: %s\n", m.Rule, statements[m.Rule])
		fmt.Fprintf(&b, "- **Source:** [%s]%s, mistake %s\n\n", m.File, c.link(m), m.ID)
		fmt.Fprintf(&b, "```text\n%s```\n", reports[m.File])
	}
	b.WriteString("\n")
	return b.String()
}

// locate finds the page above the directory of the test.
func locate(t *testing.T) string {
	t.Helper()
	return filepath.Join(root(), pageFile)
}

// root is the directory of the module, or "" if there is none above this one.
func root() string {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// sentence begins with a capital letter, unless the first word is the name of a
// repository or of a product, and ends with a full stop.
func sentence(s string) string {
	first, _, _ := strings.Cut(s, " ")
	if !strings.ContainsAny(first, "/._") && first != "etcd" {
		s = upper(s)
	}
	return strings.TrimRight(s, ".") + "."
}

// shorten keeps the first lines of a report, which have the first violation.
func shorten(evidence string) string {
	if dir := root(); dir != "" { // in the stacks of panics
		evidence = strings.ReplaceAll(evidence, dir+"/", "")
	}
	const most = 14
	lines := strings.Split(strings.TrimRight(evidence, "\n"), "\n")
	if len(lines) > most {
		lines = append(lines[:most], "...")
	}
	return strings.Join(lines, "\n") + "\n"
}
