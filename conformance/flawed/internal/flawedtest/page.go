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

Locks as people write them. The suite must catch each by the [rule](conformance.md#the-rules) that stands behind it, and
pass the same lock without the mistake. The file of each tells what goes wrong, where such locks were seen, and what to
write instead. Those that another project has had an issue about have a sentence here.

    go test -v -run 'TestFlawed|TestHealthy' ./conformance/flawed/...
    go test -v -run 'TestFlawed/Z86' ./conformance/flawed                # one, by the number in its file

The page is generated: ` + "`" + updateCommand + "`" + `.
`

// part is the part of the page about one collection.
type part struct{ dir, title, intro string }

// parts are in the order in which people come to the servers.
var parts = []part{
	{"conformance/flawed", "One server", "Made on Redis, on a table and files in memory, and around a lock that is right."},
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
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page), 0o644))
		return
	}
	if page != string(old) { // to show the pages helps nobody
		t.Errorf("%s is stale: %s", pageFile, updateCommand)
	}
}

// issue is a reference to an issue of another project.
var issue = regexp.MustCompile(`\w/[\w.-]+#\d`)

// write makes the part.
func (c *Collection) write() string {
	subjects := map[string]string{}
	for _, r := range conformance.Rules() {
		subjects[r.Name] = strings.ReplaceAll(r.Subject, " ", "-")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n\n", c.part.intro)
	for _, m := range c.flawed {
		sentence := ""
		if issue.MatchString(m.Seen) {
			sentence = strings.TrimRight(m.Summary, ".") + ". "
		}
		fmt.Fprintf(&b, "- [%s](../%s/%s): %s[%s](conformance.md#%s)\n",
			upper(m.Title), c.part.dir, m.File, sentence, m.Rule, subjects[m.Rule])
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
