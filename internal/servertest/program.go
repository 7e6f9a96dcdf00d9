package servertest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Program is a TB for a program that is no test. A server that is missing ends it.
type Program struct{ cleanups []func() }

// Helper does nothing.
func (p *Program) Helper() {}

// Name is the program's.
func (p *Program) Name() string { return filepath.Base(os.Args[0]) }

// Cleanup remembers f for CleanUp.
func (p *Program) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

// Logf does nothing: the table is all that is printed.
func (p *Program) Logf(string, ...any) {}

// Skipf ends the program.
func (p *Program) Skipf(format string, args ...any) { p.Fatalf(format, args...) }

// Fatalf says why, cleans up and ends the program.
func (p *Program) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, p.Name()+": "+format+"\n", args...)
	p.CleanUp()
	os.Exit(1)
}

// CleanUp does what was asked for with Cleanup, the last first.
func (p *Program) CleanUp() {
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
	p.cleanups = nil
}
