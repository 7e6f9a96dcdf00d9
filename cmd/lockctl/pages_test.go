package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// pages are the backends' pages, with a URL that no server has to answer.
var pages = map[string][]string{
	"memory.md":    {"mem:"},
	"file.md":      {"file:/tmp"},
	"redis.md":     {"redis://h", "rediss://h"},
	"redlock.md":   {"redlock://a,b,c"},
	"mysql.md":     {"mysql://h/d"},
	"mysql-row.md": {"mysql://h/d?mode=row"},
	"etcd.md":      {"etcd://h", "etcds://h"},
	"zookeeper.md": {"zk://h", "zks://h"},
}

const backendPages = "../../docs/backends"

// Every backend has a page, with the same headings in the same order.
func TestPagesHaveTheSameHeadings(t *testing.T) {
	t.Parallel()
	want := []string{"Example", "URL and options", "What it guarantees", "What it assumes", "What can go wrong", "Permissions", "How it works"}
	files, err := filepath.Glob(backendPages + "/*.md")
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(file))
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var got []string
		for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1) {
			got = append(got, m[1])
		}
		assert.Equal(t, want, got, file)
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(pages)), names)
	var schemes []string
	for _, urls := range pages {
		for _, url := range urls {
			scheme, _, _ := strings.Cut(url, ":")
			schemes = append(schemes, scheme)
		}
	}
	for _, d := range backend.DefaultMux.Declared() {
		scheme, _, _ := strings.Cut(d.URL, ":")
		assert.Contains(t, schemes, scheme, "a backend without a page")
	}
}

// openers are the files with the function Opener of each scheme, but for its form with TLS.
var openers = map[string]string{
	"mem": "memory/memlock.go", "file": "file/url.go", "redis": "redis/url.go", "redlock": "redis/redlock/url.go",
	"mysql": "mysql/url.go", "etcd": "etcd/url.go", "zk": "zookeeper/url.go",
}

// openerComment is what the comment of the function that opens the URL says.
func openerComment(t *testing.T, url string) string {
	t.Helper()
	scheme, _, _ := strings.Cut(url, ":")
	for _, s := range []string{scheme, strings.TrimSuffix(scheme, "s")} { // etcds is etcd
		if file, ok := openers[s]; ok {
			text, err := os.ReadFile(filepath.Join("../..", file))
			require.NoError(t, err)
			comment := regexp.MustCompile(`(?m)((?:^//.*\n)+)func Opener\(`).FindSubmatch(text)
			require.NotNil(t, comment, "%s has no Opener with a comment", file)
			return string(comment[1])
		}
	}
	require.Fail(t, "openers has no file", "for %s", scheme)
	return ""
}

// A backend refuses a parameter that it does not know, and names those that it
// accepts. Each of them is in the table of options of its page, and in the comment of its
// Opener.
func TestPagesHaveAllOptions(t *testing.T) {
	t.Parallel()
	accepted := regexp.MustCompile(`accepted (?:is|are) ([a-z_, ]+)`)
	for page, urls := range pages {
		text, err := os.ReadFile(filepath.Join(backendPages, page))
		require.NoError(t, err)
		_, options, ok := strings.Cut(string(text), "\n## URL and options\n")
		require.True(t, ok, page)
		options, _, _ = strings.Cut(options, "\n## ")
		table := ""
		for line := range strings.Lines(options) {
			if cells := strings.Split(line, "|"); len(cells) == 5 { // parameter, meaning, default
				table += cells[1]
			}
		}
		for _, url := range urls {
			separator := "?"
			if strings.Contains(url, "?") {
				separator = "&"
			}
			_, err := lock.Open(t.Context(), url+separator+"no_such_parameter=1", nil)
			require.ErrorIs(t, err, lock.ErrInvalid, url)
			m := accepted.FindStringSubmatch(err.Error())
			if m == nil {
				require.ErrorContains(t, err, "none are accepted", url)
				continue
			}
			comment := openerComment(t, url)
			for name := range strings.SplitSeq(m[1], ", ") {
				if name == "ttl" { // which is read for every Opener
					continue
				}
				assert.Regexp(t, `\b`+name+`\b`, comment, "the comment of the Opener of %s, which accepts it", url)
				assert.Contains(t, table, fmt.Sprintf("`%s`", name), "%s: %s accepts it", page, url)
			}
		}
	}
}
