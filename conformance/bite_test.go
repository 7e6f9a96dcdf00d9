package conformance_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
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
	broken := brokenLocks(t)
	var known []string
	for _, r := range conformance.Rules() {
		known = append(known, r.Name)
		assert.NotEmpty(t, broken[r.Name], "no mutant and no flawed lock is caught by %s: add a mutant to the tests of internal/rules, or a flawed lock", r.Name)
	}
	for rule := range broken {
		assert.Contains(t, known, rule, "a mutant or a flawed lock names a rule that does not exist")
	}
}

// brokenLocks are the locks that break each rule, as links from a page: flawed locks
// first, then mutants.
func brokenLocks(t *testing.T) map[string][]string {
	t.Helper()
	broken := map[string][]string{}
	require.NoError(t, filepath.WalkDir("flawed", parsed(func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if rule := field(lit, "Rule"); rule != "" {
				broken[rule] = append(broken[rule], link(field(lit, "Title"), path))
			}
			return true
		})
	})))
	mutants := func(path string, file *ast.File) {
		within := ""
		add := func(name string, rules ast.Expr) {
			for _, rule := range strings.Fields(text(rules)) {
				broken[rule] = append(broken[rule], link(name, path))
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				within = n.Name.Name
			case *ast.KeyValueExpr:
				lit, ok := n.Value.(*ast.CompositeLit)
				if name := text(n.Key); ok && name != "" && len(lit.Elts) > 0 {
					add(name, lit.Elts[0])
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "mustFail" {
					add(within, n.Args[len(n.Args)-1])
				}
			}
			return true
		})
	}
	require.NoError(t, filepath.WalkDir(filepath.Join("internal", "rules"), parsed(mutants)))
	require.NoError(t, filepath.WalkDir(filepath.Join("linear", "flawed_test.go"), parsed(mutants))) // with the judge there
	return broken
}

// parsed visits the Go files of a directory that declare broken locks.
func parsed(visit func(path string, file *ast.File)) fs.WalkDirFunc {
	return func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		if strings.HasPrefix(path, "flawed") == strings.HasSuffix(path, "_test.go") {
			return nil // flawed locks are no tests, and mutants are
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			visit(path, file)
		}
		return err
	}
}

func link(name, path string) string {
	return fmt.Sprintf("[%s](../conformance/%s)", name, filepath.ToSlash(path))
}

// field is the string in the field of a literal of a struct.
func field(lit *ast.CompositeLit, name string) string {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == name {
				return text(kv.Value)
			}
		}
	}
	return ""
}

// text is a literal string, or the value of a field of a mutant that names its rules.
func text(e ast.Expr) string {
	if kv, ok := e.(*ast.KeyValueExpr); ok {
		if key, ok := kv.Key.(*ast.Ident); !ok || key.Name != "rules" {
			return ""
		}
		e = kv.Value
	}
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}
