package lock_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// These tests keep the shape of the project: who may import whom, and what every
// package owes its readers. They read the source whatever its build tags are.

const module = "github.com/mortiselock/lock"

// testLibraries are for _test.go files and the packages for tests alone. A prefix
// ends with a slash or is a whole import path.
var testLibraries = []string{
	"testing", "testing/", "net/http/httptest",
	"github.com/stretchr/testify", "github.com/stretchr/testify/",
	"go.uber.org/goleak", "go.uber.org/goleak/",
	"pgregory.net/rapid", "pgregory.net/rapid/",
	"github.com/anishathalye/porcupine",
}

// sourceFile is one Go file of the module.
type sourceFile struct {
	name    string // relative to the root, with slashes
	dir     string // "." for the root
	isTest  bool
	imports map[string]string // path to the name it has in the file
	ast     *ast.File
}

// source parses every Go file of the module once.
var source = sync.OnceValues(func() ([]sourceFile, error) {
	var files []sourceFile
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if base != "." && (base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")) {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && base != "." {
				return fs.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(p)
		sf := sourceFile{
			name: name, dir: path.Dir(name), ast: f,
			isTest: strings.HasSuffix(name, "_test.go"), imports: map[string]string{},
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			sf.imports[imported] = path.Base(imported)
			if spec.Name != nil {
				sf.imports[imported] = spec.Name.Name
			}
		}
		files = append(files, sf)
		return nil
	})
	return files, err
})

func sources(t *testing.T) []sourceFile {
	t.Helper()
	files, err := source()
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// forTests are the packages that only tests may import, as they may import the test
// libraries.
var forTests = []string{"internal/servertest", "internal/backendtest", "conformance/flawed/internal/flawedtest", "conformance/linear", "redis/internal/redistest", "mysql/internal/mysqltest"}

// isTool reports whether the directory has a command for those who work on the module,
// which make runs. Nobody else links it.
func isTool(dir string) bool {
	return strings.HasPrefix(dir, "scripts/")
}

func isTestLibrary(imported string) bool {
	return slices.ContainsFunc(testLibraries, func(lib string) bool {
		return imported == lib || strings.HasSuffix(lib, "/") && strings.HasPrefix(imported, lib)
	})
}

// isStandard reports whether the path belongs to the standard library, whose
// first element alone has no dot.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// inModule returns the directory of a package of this module.
func inModule(imported string) (dir string, ok bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

// backendDirs are the packages that answer for a URL scheme.
func backendDirs(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, f := range sources(t) {
		if f.isTest || slices.Contains(dirs, f.dir) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			register, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || register.Sel.Name != "Register" {
				return true
			}
			if mux, ok := register.X.(*ast.SelectorExpr); ok && mux.Sel.Name == "DefaultMux" {
				dirs = append(dirs, f.dir)
				return false
			}
			return true
		})
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	require.Contains(t, dirs, "memory", "no backend was found; the search is broken")
	return dirs
}

// policy are the parts of the root, each with those of them that it may import.
var policy = map[string][]string{
	".":                  {"internal/construct", "internal/wait", "internal/hold", "internal/call", "internal/schedule", "internal/reentry"},
	"internal/wait":      {"internal/hold", "internal/call", "internal/schedule", "internal/reentry"},
	"internal/hold":      {"internal/call", "internal/schedule"},
	"internal/call":      {"internal/schedule", "internal/joined"},
	"internal/construct": nil,
	"internal/joined":    nil,
	"internal/schedule":  nil,
	"internal/reentry":   {"internal/call"},
}

func TestImportsPointInward(t *testing.T) {
	t.Parallel()
	backends := backendDirs(t)
	for _, f := range sources(t) {
		if f.isTest {
			continue
		}
		for imported := range f.imports {
			dir, own := inModule(imported)
			parts, isPolicy := policy[f.dir]
			switch {
			case f.dir == "backend":
				assert.True(t, isStandard(imported), "%s imports %s: backend imports the standard library only", f.name, imported)
			case isPolicy:
				allowed := isStandard(imported) || dir == "backend" || slices.Contains(parts, dir)
				assert.True(t, allowed, "%s imports %s: the root and its parts import the standard library, backend and the parts below them", f.name, imported)
			case slices.Contains(backends, f.dir) && own:
				above, _, internal := strings.Cut(dir+"/", "internal/")
				allowed := dir == "." || dir == "backend" || internal && strings.HasPrefix(f.dir+"/", above) ||
					strings.HasPrefix(dir, f.dir+"/") && !slices.Contains(backends, dir)
				assert.True(t, allowed, "%s imports %s: a backend imports the root, backend and its client library, never another backend", f.name, imported)
			}
		}
	}
}

// The two forms of MySQL share a package, and nothing else of each other.
func TestFormsOfMySQLAreApart(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if !strings.HasPrefix(f.dir, "mysql/internal/") {
			continue
		}
		for imported := range f.imports {
			dir, _ := inModule(imported)
			shared := dir == "mysql/internal/wire" || f.isTest && dir == "mysql/internal/mysqltest"
			if strings.HasPrefix(dir, "mysql") {
				assert.True(t, shared && dir != f.dir, "%s imports %s", f.name, imported)
			}
		}
	}
}

func TestTestLibrariesStayInTests(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if f.isTest || slices.Contains(forTests, f.dir) {
			continue
		}
		for imported := range f.imports {
			assert.False(t, isTestLibrary(imported), "%s imports %s, which only tests and the packages for tests may", f.name, imported)
			if dir, own := inModule(imported); own && !strings.HasPrefix(f.dir, "internal/") && !isTool(f.dir) {
				assert.NotContains(t, forTests, dir, "%s imports a package for tests", f.name)
			}
		}
	}
}

// TestNoTestLibraryIsLinked looks at everything that a user can link, with all
// that it imports in turn: the suite and the tool too.
func TestNoTestLibraryIsLinked(t *testing.T) {
	t.Parallel()
	var shipped []string
	for _, f := range sources(t) {
		if !f.isTest && !strings.HasPrefix(f.dir, "internal/") && !isTool(f.dir) && !slices.Contains(forTests, f.dir) {
			shipped = append(shipped, "./"+f.dir)
		}
	}
	slices.Sort(shipped)
	shipped = slices.Compact(shipped)
	var stderr bytes.Buffer
	cmd := exec.Command("go", append([]string{"list", "-deps"}, shipped...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	linked := strings.Fields(string(out))
	require.Contains(t, linked, module+"/conformance")
	for _, imported := range linked {
		assert.False(t, isTestLibrary(imported), "a package that users link imports %s; find it with: go mod why %s", imported, imported)
	}
}

func TestEveryBackendRunsTheSuite(t *testing.T) {
	t.Parallel()
	runs := map[string]bool{}
	for _, f := range sources(t) {
		name, ok := f.imports[module+"/conformance"]
		if !f.isTest || !ok {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Run" || sel.Sel.Name == "Check") {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == name {
					runs[f.dir] = true
				}
			}
			return true
		})
	}
	for _, dir := range backendDirs(t) {
		assert.True(t, runs[dir], "%s registers a backend, and no test in it calls conformance.Run", dir)
	}
}

// The layout in the design page has every file of this package, and every other package, but
// for the folders below those of the examples, and of the flawed locks.
func TestLayoutIsComplete(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/design/README.md")
	require.NoError(t, err)
	_, layout, ok := strings.Cut(string(page), "\n## Layout\n")
	require.True(t, ok)
	layout, _, _ = strings.Cut(layout, "\n## ")
	listed := map[string]bool{".": true}
	for line := range strings.Lines(layout) {
		if name, ok := strings.CutPrefix(line, "    "); ok {
			listed[strings.TrimSuffix(strings.Fields(name)[0], "/")] = true
		}
	}
	for _, f := range sources(t) {
		dir := f.dir
		for _, above := range []string{"examples", "conformance/flawed"} {
			if strings.HasPrefix(dir, above+"/") {
				dir = above
			}
		}
		assert.True(t, listed[dir], "%s is not in the layout of docs/design/README.md: write there what it is for", dir)
		if dir == "." && !f.isTest {
			assert.Contains(t, layout, f.name, "%s is not in the layout of docs/design/README.md: write there what it is for", f.name)
		}
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	t.Parallel()
	comments := map[string][]string{}
	for _, f := range sources(t) {
		if f.isTest {
			continue
		}
		if _, ok := comments[f.dir]; !ok {
			comments[f.dir] = nil
		}
		if f.ast.Doc == nil {
			continue
		}
		comments[f.dir] = append(comments[f.dir], f.name)
		want := "Package " + f.ast.Name.Name + " "
		if f.ast.Name.Name == "main" {
			want = "" // a command is called by its own name
		}
		assert.True(t, strings.HasPrefix(f.ast.Doc.Text(), want), "%s: the package comment does not begin with %q", f.name, want)
	}
	for dir, files := range comments {
		assert.Len(t, files, 1, "package comments in %s", dir)
	}
}

func TestEveryExportedNameHasAComment(t *testing.T) {
	t.Parallel()
	for _, f := range sources(t) {
		if f.isTest || f.ast.Name.Name == "main" {
			continue
		}
		missing := func(name string) {
			t.Errorf("%s: %s has no doc comment", f.name, name)
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				receiver, exported := receiverOf(d)
				if exported && d.Name.IsExported() && d.Doc == nil {
					missing(receiver + d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					for _, name := range undocumented(d, spec) {
						missing(name)
					}
				}
			}
		}
	}
}

// receiverOf returns the type of a method, and whether readers of the
// documentation see what is declared on it.
func receiverOf(d *ast.FuncDecl) (name string, exported bool) {
	if d.Recv == nil {
		return "", true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name + ".", x.IsExported()
		default:
			return "", false
		}
	}
}

// undocumented returns the exported names of a declaration that have no comment
// of their own, beside them, or above their group.
func undocumented(d *ast.GenDecl, spec ast.Spec) []string {
	var names []string
	switch s := spec.(type) {
	case *ast.ValueSpec:
		if d.Doc != nil || s.Doc != nil || s.Comment != nil {
			return nil
		}
		for _, n := range s.Names {
			if n.IsExported() {
				names = append(names, n.Name)
			}
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return nil
		}
		if s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
			names = append(names, s.Name.Name)
		}
	}
	return names
}
