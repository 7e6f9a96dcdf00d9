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
