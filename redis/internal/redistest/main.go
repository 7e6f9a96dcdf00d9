package redistest

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// Main runs the tests of a package. childConformance makes the Configs of the suite in the
// processes that it starts. The run fails if a goroutine is left when every test has
// closed what it opened.
func Main(m *testing.M, childConformance func(string) conformance.Config) {
	goredis.SetLogger(quiet{}) // it tells of every connection that a test breaks
	conformance.Child(childConformance)
	goleak.VerifyTestMain(patient{servertest.StopAfter(m)})
}

// patient lets clients that were closed find it out: go-redis asks a dead server for a
// sign of life once a second, and looks only then.
type patient struct{ servertest.Runner }

func (p patient) Run() int {
	code := p.Runner.Run()
	for end := time.Now().Add(20 * time.Second); goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
