package servertest

import (
	"os"
	"time"
)

// Budget is conformance.Config.Budget for a suite on a real server: a few rounds of what is
// a matter of luck, so that all forms together take minutes. Where LOCK_TEST_LONG is set it
// is zero, which is as many rounds as the suite makes by default.
func Budget() time.Duration {
	if os.Getenv("LOCK_TEST_LONG") != "" {
		return 0
	}
	return 6 * time.Second
}

// Also is called first by a test whose name begins with TestAlso: it runs the whole suite on a
// form that has had it already, on another server or reached in another way. The race detector
// makes a suite cost five times as much and looks at the same code again, so with it the
// test is skipped unless LOCK_TEST_LONG is set.
func Also(t TB) {
	t.Helper()
	if raceDetector && os.Getenv("LOCK_TEST_LONG") == "" {
		t.Skipf("the form has its suite under the race detector elsewhere; this one runs without it (-run ^TestAlso), or set LOCK_TEST_LONG")
	}
}
