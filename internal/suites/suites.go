// Package suites is about the forms of a lock on other servers, or reached in another way: they
// have the suite too, at less cost.
package suites

import "os"

// Also is called first by a test whose name begins with TestAlso: it runs the whole suite on a
// form that has had it already, on another server or reached in another way. The race detector
// makes a suite cost several times as much and looks at the same code again, so with it the
// test is skipped unless LOCK_TEST_LONG is set.
func Also(t interface {
	Helper()
	Skip(args ...any)
}) {
	t.Helper()
	if raceDetector && !Long() {
		t.Skip("the form has its suite under the race detector elsewhere; this one runs without it (-run ^TestAlso), or set LOCK_TEST_LONG")
	}
}

// Long reports whether there is time for the forms that differ from another one in little:
// LOCK_TEST_LONG is set.
func Long() bool { return os.Getenv("LOCK_TEST_LONG") != "" }
