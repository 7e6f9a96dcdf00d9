package etcdlock

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// The run fails if a goroutine is left when every test has closed what it opened.
func TestMain(m *testing.M) {
	conformance.Child(conformanceOfURL)
	goleak.VerifyTestMain(servertest.StopAfter(m))
}

func sharedURL(t testing.TB) string {
	url := os.Getenv("TEST_ETCD_URL")
	if url == "" {
		t.Skip("no server")
	}
	return url
}
