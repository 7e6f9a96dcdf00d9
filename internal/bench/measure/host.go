package measure

import (
	"fmt"
	"os"
	"slices"
)

// Host stands in for a test towards servertest. A server that is missing ends the
// program.
type Host struct{ cleanups []func() }

// Helper does nothing.
func (h *Host) Helper() {}

// Name is the program's.
func (h *Host) Name() string { return "bench" }

// Cleanup remembers f for CleanUp.
func (h *Host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

// Logf does nothing: the table is all that is printed.
func (h *Host) Logf(string, ...any) {}

// Skipf ends the program.
func (h *Host) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

// Fatalf says why, cleans up and ends the program.
func (h *Host) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
	h.CleanUp()
	os.Exit(1)
}

// CleanUp does what was asked for with Cleanup, the last first.
func (h *Host) CleanUp() {
	for _, f := range slices.Backward(h.cleanups) {
		f()
	}
	h.cleanups = nil
}
