package conformance_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

// TestEveryRuleBites requires that each rule is the one that catches a mutant of the
// suite's own tests, or a flawed lock: a rule that cannot fail proves nothing. It reads
// what they name; that the rules do fail is required where the mutants are.
func TestEveryRuleBites(t *testing.T) {
	t.Parallel()
	caught := map[string]bool{
		// Package linear, whose judge they need, has the locks that they catch.
		"Linearizable": true, "LinearizableUnderFaults": true,
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path == "peers":
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if strings.HasPrefix(path, "flawed") {
			ast.Inspect(file, func(n ast.Node) bool { return catches(n, "Rule", caught) })
		} else if strings.HasSuffix(path, "_test.go") {
			ast.Inspect(file, func(n ast.Node) bool { return catches(n, "rules", caught) })
		}
		return nil
	}))
	var known []string
	for _, r := range conformance.Rules() {
		known = append(known, r.Name)
		assert.True(t, caught[r.Name], "no mutant and no flawed lock is caught by %s", r.Name)
	}
	for rule := range caught {
		assert.Contains(t, known, rule, "a mutant or a flawed lock names a rule that does not exist")
	}
}

// catches adds the rules that catch something: those in a field of that name, in the
// first field of a value in a map that is keyed by strings, and in the last argument of
// mustFail.
func catches(n ast.Node, field string, caught map[string]bool) bool {
	var names ast.Expr
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == field {
			names = n.Value
		} else if value, ok := n.Value.(*ast.CompositeLit); ok && isString(n.Key) && len(value.Elts) > 0 && field == "rules" {
			names = value.Elts[0]
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "mustFail" {
			names = n.Args[len(n.Args)-1]
		}
	}
	if names != nil && isString(names) {
		text, _ := strconv.Unquote(names.(*ast.BasicLit).Value)
		for _, rule := range strings.Fields(text) {
			caught[rule] = true
		}
	}
	return true
}

func isString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING && !slices.Contains([]string{"", `""`}, lit.Value)
}
