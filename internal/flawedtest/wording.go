package flawedtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wordings are how the suite tells what it has seen: patterns of the formats in its
// source.
func wordings(t *testing.T) []*regexp.Regexp {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(), "conformance", "*.go"))
	require.NoError(t, err)
	var all []*regexp.Regexp
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for _, arg := range call.Args {
				format, _, _ := strings.Cut(textOf(arg), "\n")
				if says(format) {
					all = append(all, pattern(format))
				}
			}
			return true
		})
	}
	return all
}

// textOf is the text of constants, with "%v" for what is not constant.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if e.Kind == token.STRING && err == nil {
			return text
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return textOf(e.X) + textOf(e.Y)
		}
	}
	return "%v"
}

var verb = regexp.MustCompile(`%[-+# 0-9.*]*[a-zA-Z]`)

// says reports whether a format has words of its own that tell it from others.
func says(format string) bool {
	return len(strings.Fields(verb.ReplaceAllString(format, ""))) >= 3
}

func pattern(format string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`^`)
	last := 0
	for _, at := range verb.FindAllStringIndex(format, -1) {
		b.WriteString(regexp.QuoteMeta(format[last:at[0]]) + `.*`)
		last = at[1]
	}
	b.WriteString(regexp.QuoteMeta(strings.ReplaceAll(format[last:], "%%", "%")) + `$`)
	return regexp.MustCompile(b.String())
}

var (
	seen = regexp.MustCompile(`(?m)^at [\d.]+ s: (.*)$`)
	more = regexp.MustCompile(` \(and \d+ more like this\)$`)
)

// requireWording fails the test if the report says something that the suite has no
// words for any more.
func requireWording(t *testing.T, m Mistake, report string, known []*regexp.Regexp) {
	t.Helper()
	for _, line := range seen.FindAllStringSubmatch(report, -1) {
		text := more.ReplaceAllString(line[1], "")
		found := strings.HasPrefix(text, "panic: ")
		for _, wording := range known {
			found = found || wording.MatchString(text)
		}
		assert.True(t, found, "%s is stale about %s, in words that the suite does not have any more: %s\n%s", pageFile, m.File, updateCommand, text)
	}
}
