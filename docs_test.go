package lock_test

import (
	"flag"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	// What the page's module runs. The import makes go test run this one again
	// when the suite has changed.
	_ "github.com/mortiselock/lock/conformance"
)

var update = flag.Bool("update", false, "write the summary of the suite in docs/writing-a-backend.md anew")

// TestWritingABackendPage does what docs/writing-a-backend.md tells its readers to
// do: the files as printed there, in a module of their own outside of this one,
// pass the suite.
func TestWritingABackendPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/writing-a-backend.md")
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	dir := t.TempDir()
	files := regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```\\w*\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, files, 3)
	for _, f := range files {
		text := strings.ReplaceAll(f[2], "=> ../lock\n", "=> "+filepath.ToSlash(here)+"\n")
		require.NoError(t, os.WriteFile(filepath.Join(dir, f[1]), []byte(text), 0o600))
	}
	// -mod=mod does what go mod tidy does for readers, without looking further than
	// what is built.
	cmd := exec.Command("go", "test", "-trimpath", "-mod=mod", "-count=1", "-v", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	summary := regexp.MustCompile(`conformance of map: \d\d+ pass, 0 fail, .*`)
	assert.Regexp(t, summary, string(out))
	now := summary.FindString(string(out))
	if *update {
		require.NoError(t, os.WriteFile("docs/writing-a-backend.md", []byte(summary.ReplaceAllLiteralString(string(page), now)), 0o644))
		return
	}
	// A busy machine moves a verdict now and then, but every rule has one.
	assert.Equal(t, sum(now), sum(summary.FindString(string(page))), "docs/writing-a-backend.md shows a summary with another number of rules: run this test with -update")
}

// sum adds up the numbers in a text.
func sum(text string) (n int) {
	for _, digits := range regexp.MustCompile(`\d+`).FindAllString(text, -1) {
		d, _ := strconv.Atoi(digits)
		n += d
	}
	return n
}

// TestLinksLeadSomewhere follows the links between the pages, to their headings, and into
// the tree.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	}))
	require.Contains(t, pages, "README.md")
	require.Contains(t, pages, filepath.Join("docs", "backends", "redis.md"))
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	anchors := map[string][]string{} // by page
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			u, err := url.Parse(m[1])
			if !assert.NoError(t, err, "%s links to %s", page, m[1]) || u.IsAbs() {
				continue
			}
			target := page
			if u.Path != "" {
				target = filepath.Join(filepath.Dir(page), filepath.FromSlash(u.Path))
			}
			_, err = os.Stat(target)
			if assert.NoError(t, err, "%s links to %s", page, m[1]) && u.Fragment != "" {
				if anchors[target] == nil {
					anchors[target] = anchorsOf(t, target)
				}
				assert.Contains(t, anchors[target], u.Fragment, "%s links to %s", page, m[1])
			}
		}
	}
}

// TestParametersAreOnThePages requires that the page of a backend has each parameter of the
// URL that the code reads, in its table of parameters, and no other, and that the comment of
// Opener names each.
func TestParametersAreOnThePages(t *testing.T) {
	t.Parallel()
	read := regexp.MustCompile(`(?:\bq|\bu\.Query)\.(?:String|Int|Bool|Duration|OneOf)\("(\w+)"`)
	row := regexp.MustCompile("(?m)^\\| Parameter \\|.*\n((?:\\|.*\n)+)")
	name := regexp.MustCompile("`([a-z0-9_]+)`")
	comment := regexp.MustCompile(`((?://.*\n)+)func Opener\(`)
	readers := map[string][]string{} // of each parameter
	for reader, pages := range map[string][]string{
		"memory":              {"memory"},
		"file":                {"file"},
		"redis":               {"redis"},
		"redis/redlock":       {"redlock"},
		"mysql/internal/wire": {"mysql", "mysql-row"},
		"etcd":                {"etcd"},
		"zookeeper":           {"zookeeper"},
	} {
		inCode, onPage := map[string]bool{"ttl": true}, map[string]bool{} // ttl is read for all of them
		files, err := filepath.Glob(filepath.Join(filepath.FromSlash(reader), "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, reader)
		if reader == "mysql/internal/wire" {
			files = append(files, filepath.Join("mysql", "url.go"))
		}
		var opener []byte
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range read.FindAllStringSubmatch(string(source), -1) {
				inCode[m[1]] = true
			}
			if m := comment.FindSubmatch(source); m != nil {
				opener = m[1]
			}
		}
		require.NotEmpty(t, opener, reader)
		for parameter := range inCode {
			if parameter != "ttl" {
				readers[parameter] = append(readers[parameter], path.Base(strings.TrimSuffix(reader, "/internal/wire")))
				assert.Regexp(t, `\b`+parameter+`\b`, string(opener), "the comment of Opener, of %s", reader)
			}
		}
		for _, page := range pages {
			text, err := os.ReadFile(filepath.Join("docs", "backends", page+".md"))
			require.NoError(t, err)
			table := row.FindStringSubmatch(string(text))
			if table == nil {
				continue
			}
			for _, line := range strings.Split(table[1], "\n") {
				first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
				for _, m := range name.FindAllStringSubmatch(first, -1) {
					onPage[m[1]] = true
				}
			}
		}
		assert.Equal(t, inCode, onPage, "the URL parameters that %s reads (expected), and those in the table of docs/backends/%s.md (actual): write the missing ones there", reader, pages[0])
	}

	shared := map[string]string{}
	for parameter, backends := range readers {
		if len(backends) > 1 {
			slices.Sort(backends)
			shared[parameter] = strings.Join(backends, ", ")
		}
	}
	text, err := os.ReadFile(filepath.Join("docs", "README.md"))
	require.NoError(t, err)
	table := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| ([a-z, ]+) \\|").FindAllStringSubmatch(string(text), -1) {
		table[m[1]] = m[2]
	}
	assert.Equal(t, shared, table, "the parameters that several backends read (expected), and those in docs/README.md (actual)")
}

// anchorsOf are what links can name in a page: its headings, as GitHub writes them.
func anchorsOf(t *testing.T, page string) (anchors []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		letters := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors = append(anchors, strings.ReplaceAll(letters, " ", "-"))
	}
	return anchors
}
