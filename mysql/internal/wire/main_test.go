package wire

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/mortiselock/lock/internal/servertest"
)

// The run fails if a goroutine is left when every test has closed what it
// opened.
func TestMain(m *testing.M) { goleak.VerifyTestMain(servertest.StopAfter(m)) }
