package conformance_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance"
)

const promisesPage = "../docs/promises.md"

var updatePromises = flag.Bool("update-promises", false, "write docs/promises.md")

const promisesHead = `# Promises

Each sentence of promise in the doc comments of the interfaces: its number there, the sentence in short, and the
[rules](conformance.md#the-rules) that try it. A rule links to one lock that it fails: a
[flawed lock](flawed-locks.md), or a mutant of the suite's own tests, which may break another sentence of the same rule.
Tests require that it does fail. A star is at rules that need Config.OpenBackend.

The page is generated, from the comments and [a table](../conformance/promises_test.go) with the whole sentences:

    go test ./conformance -run TestPromises -update-promises

A sentence without a rule, or a rule without a broken lock, fails the test. Those that no rule can try from outside stand
[at the end](#what-cant-be-tried-from-outside), with the tests of this project that do. The table also says why %d sentences
promise nothing: definitions, duties of the caller, freedoms of a backend.
`

// sentence is one sentence of a doc comment.
type sentence struct {
	of   string // the declaration, such as "lock.Locker.Acquire"
	n    int    // in its comment, from 1
	text string // in one line
}

func (s sentence) id() string { return fmt.Sprintf("%s.%d", s.of, s.n) }

var (
	brackets    = regexp.MustCompile(` \([^)]*\)`)
	clauseEnd   = regexp.MustCompile(`[,;:] `)
	partEnd     = regexp.MustCompile(` (?:and )?(?:once )?(as|before|except|from|if|since|so that|that|which|unless|until|when|with) `)
	isCondition = regexp.MustCompile(`^(After|Because|Behind|For|If|In|Of|Until|When|Where|While|With|Without)\b`)
)

// beginning is the sentence without its name and without brackets. Of a long one it is the
// first clause that says something, no condition and no item of a list, and of a long clause
// its first part; then it ends in "...".
func (s sentence) beginning() string {
	name := s.of[strings.LastIndex(s.of, ".")+1:]
	text := strings.TrimPrefix(strings.TrimPrefix(s.text, name+": "), name+" ")
	text = brackets.ReplaceAllString(text, "")
	long := func(text string, words int) bool { return len(strings.Fields(text)) >= words }
	if !long(text, 12) {
		return text
	}
	from := 0
	for _, at := range clauseEnd.FindAllStringIndex(text, -1) {
		clause, part := text[:at[0]], text[from:at[0]]
		item := text[at[0]] == ',' && !(long(part, 4) && long(clauseEnd.Split(text[at[1]:], 2)[0], 4))
		condition := from == 0 && isCondition.MatchString(clause)
		from = at[1]
		if !item && !condition && long(clause, 4) {
			text = clause + "..."
			break
		}
	}
	for _, at := range partEnd.FindAllStringIndex(text, -1) {
		if long(text, 11) && long(text[:at[0]], 5) {
			return strings.TrimRight(text[:at[0]], ",") + "..."
		}
	}
	return text
}

// TestPromises requires that each sentence of the contract is in the table, that the
// table has no other, that what tries it exists, that each rule tries one, and that the page is
// up to date.
func TestPromises(t *testing.T) {
	known := map[[2]string]promise{}
	for _, p := range promises {
		key := [2]string{p.of, p.text}
		assert.NotContains(t, known, key, "the table has a sentence twice")
		known[key] = p
	}
	broken, star, named := brokenLocks(t), map[string]string{}, map[string]bool{}
	for _, rule := range conformance.Rules() {
		if rule.NeedsBackend {
			star[rule.Name] = `\*`
		}
	}
	var tried strings.Builder
	untried, asked := map[string]string{}, map[string][]string{} // by why
	var whys []string
	aside, section := 0, ""
	for _, s := range readContract(t) {
		key := [2]string{s.of, s.text}
		p, ok := known[key]
		delete(known, key)
		if !assert.True(t, ok, "%s: the table in promises_test.go does not have the sentence %q: name the rules that try it, why none can, or what it is if it is no promise", s.id(), s.text) {
			continue
		}
		pkg, id, _ := strings.Cut(s.id(), ".")
		switch {
		case p.aside != "":
			aside++
		case p.why != "":
			tests := testsOf(t, property{name: s.id(), tests: p.tests})
			assert.NotEmpty(t, tests, "%s: no test of this project asks it either", s.id())
			if untried[p.why] == "" {
				whys = append(whys, p.why)
			}
			for _, test := range tests {
				if link := fmt.Sprintf("[%s](%s)", test[1], test[0]); !slices.Contains(asked[p.why], link) {
					asked[p.why] = append(asked[p.why], link)
				}
			}
			untried[p.why] += fmt.Sprintf("- %s.%s: %s\n", pkg, id, s.beginning())
		default:
			if section != pkg {
				section = pkg
				fmt.Fprintf(&tried, "\n## Package %s\n\n", pkg)
			}
			var by []string
			for _, rule := range strings.Fields(p.rules) {
				named[rule] = true
				if assert.NotEmpty(t, broken[rule], "%s: no lock is broken for %s: add a mutant to the tests of internal/rules, or a flawed lock", s.id(), rule) {
					_, file, _ := strings.Cut(broken[rule][0], "](")
					by = append(by, fmt.Sprintf("[%s](%s%s", rule, file, star[rule]))
				}
			}
			assert.NotEmpty(t, by, "%s: no rule tries it", s.id())
			for _, test := range testsOf(t, property{name: s.id(), tests: p.tests}) {
				by = append(by, fmt.Sprintf("[%s](%s)", test[1], test[0]))
			}
			fmt.Fprintf(&tried, "- %s: %s %s\n", id, s.beginning(), strings.Join(by, ", "))
		}
	}
	for _, r := range conformance.Rules() {
		assert.True(t, named[r.Name], "%s tries no sentence: name it in promises_test.go", r.Name)
	}
	for key := range known {
		assert.Fail(t, "a sentence of the table is in no comment any more", "%s: %s", key[0], key[1])
	}
	want := fmt.Sprintf(promisesHead, aside) + tried.String() +
		"\n## What can't be tried from outside\n\nTests of this project ask it, as named below each reason.\n"
	for _, why := range whys {
		want += "\n" + why + "\n\n" + untried[why] + "\n" + strings.Join(asked[why], ", ") + "\n"
	}
	if *updatePromises && !t.Failed() {
		require.NoError(t, os.WriteFile(promisesPage, []byte(want), 0o644))
		return
	}
	have, err := os.ReadFile(promisesPage)
	require.NoError(t, err)
	if want != string(have) { // to show the pages helps nobody
		t.Error("docs/promises.md is stale: go test ./conformance -run TestPromises -update-promises")
	}
}

// contract is where the promises of the public interfaces are. Names are the top-level
// declarations that are read, or none for all.
var contract = []struct{ file, pkg, names string }{
	{"lock.go", "lock", "package Locker Lease"},
	{"options.go", "lock", ""},
	{"pair.go", "lock", "Pair Both"},
	{"observer.go", "lock", "Observer"},
	{"errors.go", "lock", ""},
	{"backend/doc.go", "backend", ""},
	{"backend/backend.go", "backend", ""},
	{"backend/abilities.go", "backend", ""},
	{"backend/guarantees.go", "backend", ""},
	{"backend/errors.go", "backend", ""},
	{"backend/key.go", "backend", ""},
}

// readContract returns every sentence of the doc comments of the contract.
func readContract(t *testing.T) (all []sentence) {
	t.Helper()
	for _, c := range contract {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", c.file), nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		names := strings.Fields(c.names)
		documented(file, func(name string, docs ...*ast.CommentGroup) {
			top, _, _ := strings.Cut(name, ".")
			if len(names) > 0 && !slices.Contains(names, top) {
				return
			}
			n := 0
			for _, doc := range docs {
				for _, text := range sentences(doc.Text()) {
					n++
					all = append(all, sentence{c.pkg + "." + name, n, text})
				}
			}
		})
	}
	return all
}

// documented visits the comments of the package, of what it exports, and of the fields
// and methods of that.
func documented(file *ast.File, visit func(name string, docs ...*ast.CommentGroup)) {
	visit("package", file.Doc)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			if ast.IsExported(d.Name.Name) && ast.IsExported(name) {
				visit(name, d.Doc)
			}
		case *ast.GenDecl:
			if d.Lparen.IsValid() {
				d.Doc = nil // it is about all of them
			}
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					if s.Names[0].IsExported() {
						visit(s.Names[0].Name, d.Doc, s.Doc, s.Comment)
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						visit(s.Name.Name, d.Doc, s.Doc, s.Comment)
						members(s, visit)
					}
				}
			}
		}
	}
}

// members visits the comments of the exported fields of a struct or methods of an interface.
func members(s *ast.TypeSpec, visit func(name string, docs ...*ast.CommentGroup)) {
	var list []*ast.Field
	switch t := s.Type.(type) {
	case *ast.StructType:
		list = t.Fields.List
	case *ast.InterfaceType:
		list = t.Methods.List
	}
	for _, f := range list {
		if len(f.Names) > 0 && f.Names[0].IsExported() {
			visit(s.Name.Name+"."+f.Names[0].Name, f.Doc, f.Comment)
		}
	}
}

func receiver(t ast.Expr) string {
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	return t.(*ast.Ident).Name
}

var sentenceEnd = regexp.MustCompile(`[.?!]["')\]]* `)

// sentences cuts a comment into its sentences, without code and headings.
func sentences(doc string) (all []string) {
	var texts []string
	for _, paragraph := range strings.Split(doc, "\n\n") {
		texts = append(texts, "")
		for _, line := range strings.Split(paragraph, "\n") {
			if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "# ") {
				continue
			}
			line, item := strings.CutPrefix(strings.TrimSpace(line), "- ")
			if item {
				texts = append(texts, "")
			}
			texts[len(texts)-1] += line + " "
		}
	}
	for _, text := range texts {
		for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
			end := len(text)
			if at := sentenceEnd.FindStringIndex(text); at != nil {
				end = at[1]
			}
			all = append(all, strings.TrimSpace(text[:end]))
			text = text[end:]
		}
	}
	return all
}
