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

const updateCommand = "go test -p 1 ./conformance/flawed/... -run TestPage -update"

const pageHead = `# Flawed locks

Locks as people write them, in the order in which the mistakes are met. Each has its flaw, where such locks were
seen, what to do instead, and the [rule](conformance.md#the-rules) that catches it. Each is a short file to read.

A test requires that the suite catches every one by the rule that is named here. The same lock without the
mistake passes:

    go test -v -run 'TestFlawed|TestHealthy' ./conformance/flawed/...

The page is generated: ` + "`" + updateCommand + "`" + `.
`

// part is the part of the page about one collection.
type part struct{ dir, title, intro string }

// parts are in the order in which people come to the servers.
var parts = []part{
	{"conformance/flawed", "One server", "Most mistakes need one server only. They are made here on Redis, on a table and files in memory that stand " +
		"for a database and a disk, and around a lock that is right."},
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

var heading = regexp.MustCompile(`(?m)^### \d+\. `)

// renumber counts the locks on the whole page.
func renumber(page string) string {
	n := 0
	return heading.ReplaceAllStringFunc(page, func(string) string {
		n++
		return fmt.Sprintf("### %d. ", n)
	})
}

// CheckPage requires that the page tells what the collection holds today. With the flag
// -update it writes the collection's part instead. One package at a time may do so.
func (c *Collection) CheckPage(t *testing.T) {
	t.Helper()
	file := filepath.Join(root(), pageFile)
	old, err := os.ReadFile(file)
	require.NoError(t, err)
	page := pageHead
	for _, p := range parts {
		_, body, _, ok := p.cut(string(old))
		require.True(t, ok, "the page has lost the marks of %s", p.dir)
		if p == c.part {
			body = c.write()
		}
		page += fmt.Sprintf("\n## %s\n\n%s%s%s", p.title, p.begins(), body, p.ends())
	}
	page = renumber(page)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page), 0o644))
		return
	}
	require.Equal(t, page, string(old), "%s is stale: %s", pageFile, updateCommand)
}

// write makes the part.
func (c *Collection) write() string {
	subjects := map[string]string{}
	for _, r := range conformance.Rules() {
		subjects[r.Name] = strings.ReplaceAll(r.Subject, " ", "-")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", c.part.intro)
	for _, m := range c.mistakes {
		fmt.Fprintf(&b, "\n### 0. %s\n\n", upper(m.Title))
		fmt.Fprintf(&b, "%s\n", sentence(m.Summary))
		fmt.Fprintf(&b, "Caught by [%s](conformance.md#%s). [Source](../%s/%s).\n\n", m.Rule, subjects[m.Rule], c.part.dir, m.File)
		fmt.Fprintf(&b, "- **Seen:** %s\n", sentence(m.Seen))
		fmt.Fprintf(&b, "- **Instead:** %s\n", sentence(m.Instead))
	}
	b.WriteString("\n")
	return b.String()
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
