package redistest

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock/internal/servertest"
)

// Main runs the tests of a package. It calls child first, which is for the processes that
// the suite starts. The run fails if a goroutine is left when every test has closed what
// it opened.
func Main(m *testing.M, child func()) {
	goredis.SetLogger(quiet{}) // it tells of every connection that a test breaks
	child()
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
