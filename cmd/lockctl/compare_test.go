//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

var update = flag.Bool("update", false, "write the generated parts of the pages")

// TestGuaranteesPage requires that the page is what the backends declare.
func TestGuaranteesPage(t *testing.T) {
	const (
		page   = "../../docs/guarantees.md"
		begins = "<!-- generated: go test ./cmd/lockctl -run TestGuaranteesPage -update -->\n"
		ends   = "<!-- end of the generated part -->\n"
	)
	old, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(old), begins)
	require.True(t, ok, "the page has lost the mark of its generated part")
	_, after, ok := strings.Cut(rest, ends)
	require.True(t, ok, "the page has lost the end of its generated part")
	var table bytes.Buffer
	require.NoError(t, compareMarkdown(&table, backend.DefaultMux.Declared()))
	want := before + begins + "\n" + table.String() + "\n" + ends + after
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(old), "docs/guarantees.md is stale: go test ./cmd/lockctl -run TestGuaranteesPage -update")
}

// TestEverySchemeIsDeclared: a backend that is compiled in is in the comparison.
func TestEverySchemeIsDeclared(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	for _, d := range backend.DefaultMux.Declared() {
		scheme, _, _ := strings.Cut(d.URL, ":")
		declared[scheme] = true
		assert.NotEmpty(t, d.Guarantees.Name, d.URL)
		assert.NotEmpty(t, d.Guarantees.Assumptions, d.URL)
	}
	sameWithTLS := map[string]string{"rediss": "redis", "etcds": "etcd"}
	for _, scheme := range backend.DefaultMux.Schemes() {
		if scheme == flawedScheme {
			continue // of these tests
		}
		assert.True(t, declared[scheme] || declared[sameWithTLS[scheme]], "the package of %s: does not call Declare", scheme)
	}
}

func TestPromisesNameRulesThatExist(t *testing.T) {
	t.Parallel()
	var names, subjects, claims []string
	for _, r := range conformance.Rules() {
		names, subjects, claims = append(names, r.Name), append(subjects, r.Subject), append(claims, r.Claim)
	}
	for _, p := range promises {
		for _, r := range p.rules {
			assert.Contains(t, names, r, p.title)
		}
		for _, s := range p.subjects {
			assert.Contains(t, subjects, s, p.title)
		}
		for _, c := range p.claims {
			assert.True(t, slices.ContainsFunc(claims, func(of string) bool { return strings.Contains(of, c) }), "%s: no rule has the claim %s", p.title, c)
		}
		assert.NotEmpty(t, p.proof(), p.title)
		for _, d := range backend.DefaultMux.Declared() {
			assert.NotEmpty(t, p.cell(d.Guarantees), "%s: %s", d.URL, p.title)
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	redis := servertest.SharedRedis(t)
	status, out, errs := run(t, "", "compare", "file:"+t.TempDir(), redis.URL())
	require.Equal(t, exitOK, status, errs)
	assert.Contains(t, out, "processes of one machine")
	assert.Contains(t, out, "whoever reaches the server")
	assert.Contains(t, out, "proved by")

	args, urls := []string{"compare", "mem:"}, []string{"mem:"}
	for _, p := range places {
		url := p.url(t)
		u, err := backend.ParseURL(url)
		require.NoError(t, err)
		args, urls = append(args, url), append(urls, u.String())
	}
	status, out, errs = run(t, "", args...)
	require.Equal(t, exitOK, status, errs)
	for _, url := range urls {
		assert.Contains(t, out, "  "+url+" ", "a backend is not in the comparison")
		assert.Contains(t, out, url+" assumes\n")
	}
	assert.NotContains(t, out+errs, servertest.SharedMariaDB(t).Password())

	status, out, errs = run(t, "", "compare", "--format", "json")
	require.Equal(t, exitOK, status, errs)
	var found []backend.Declaration
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	assert.Len(t, found, len(backend.DefaultMux.Declared()))

	status, _, errs = run(t, "", "compare", "--format", "html")
	assert.Equal(t, exitUsage, status)
	assert.Contains(t, errs, "it is text, markdown or json")
	status, out, errs = run(t, "", "compare", "redis://:hunter2@127.0.0.1:1")
	assert.Equal(t, exitUnavailable, status)
	assert.Empty(t, out)
	assert.NotContains(t, errs, "hunter2")
}
