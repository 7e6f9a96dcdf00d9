// Command typecheck checks the types of this module's packages, and of their tests, for the
// operating systems that are its arguments. It takes seconds where vet first compiles all that
// they import for such a system: of what is imported it reads declarations, and no bodies.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// listed is what go list says of a package, or of one that is compiled anew for a test.
type listed struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string          // with those of its tests, where it is compiled for them
	ImportMap  map[string]string // where an import means something else
	Module     *struct{ Main bool }
	Error      *struct{ Err string }
}

func (p listed) ours() bool { return p.Module != nil && p.Module.Main }

func main() {
	failed := false
	for _, system := range os.Args[1:] {
		faults, err := check(".", system)
		if err != nil {
			faults = append(faults, err)
		}
		for _, fault := range faults {
			fmt.Fprintf(os.Stderr, "%s: %v\n", system, fault)
		}
		failed = failed || len(faults) > 0
	}
	if failed {
		os.Exit(1)
	}
}

// check returns what is wrong in the packages of the module in dir.
func check(dir, system string) (faults []error, _ error) {
	list := exec.Command("go", "list", "-e", "-deps", "-test", "-json=ImportPath,Name,Dir,GoFiles,ImportMap,Module,Error", "./...")
	list.Dir, list.Stderr = dir, os.Stderr
	list.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
	out, err := list.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := list.Start(); err != nil {
		return nil, err
	}
	files, known, told := token.NewFileSet(), imports{"unsafe": types.Unsafe}, map[string]bool{}
	for packages := json.NewDecoder(out); ; { // those that are imported come first
		var p listed
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return faults, errors.Join(err, list.Wait())
		}
		if p.ImportPath == "unsafe" || p.Name == "main" && filepath.Ext(p.ImportPath) == ".test" {
			continue
		}
		if p.Error != nil && p.ours() {
			faults = append(faults, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
		}
		for _, fault := range known.add(files, p) {
			if !told[fault.Error()] { // of the package, or where it is read again with its tests
				told[fault.Error()] = true
				faults = append(faults, fault)
			}
		}
	}
	return faults, list.Wait()
}

// imports are the packages that were read so far.
type imports map[string]*types.Package

// add reads a package and returns what is wrong in it, if it is of the main module.
func (known imports) add(files *token.FileSet, p listed) (faults []error) {
	ours := p.ours()
	config := types.Config{
		IgnoreFuncBodies: !ours,
		Sizes:            types.SizesFor("gc", runtime.GOARCH),
		Importer:         renamed{known, p.ImportMap},
		Error: func(err error) {
			if ours {
				faults = append(faults, err)
			}
		},
	}
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil && ours {
			faults = append(faults, err)
		}
		if file != nil {
			parsed = append(parsed, file)
		}
	}
	known[p.ImportPath], _ = config.Check(p.ImportPath, files, parsed, nil)
	return faults
}

// renamed finds packages for one whose imports may mean others.
type renamed struct {
	known imports
	names map[string]string
}

// Import implements types.Importer.
func (r renamed) Import(path string) (*types.Package, error) {
	if name, ok := r.names[path]; ok {
		path = name
	}
	if p := r.known[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("package %s was not listed", path)
}
