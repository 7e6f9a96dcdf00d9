package mysqllock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// The run fails if a goroutine is left when every test has closed what it
// opened.
func TestMain(m *testing.M) {
	secondProcess()
	conformance.Child(childConformance)
	goleak.VerifyTestMain(servertest.StopAfter(m))
}

// childConfigs makes the Configs of the suite again in the processes that it
// starts, by the first word of Config.Child. Each form adds its own in an init.
var childConfigs = map[string]func(rest string) conformance.Config{}

func childConformance(child string) conformance.Config {
	word, rest, _ := strings.Cut(child, " ")
	make, ok := childConfigs[word]
	if !ok {
		panic(fmt.Sprintf("no Config is called %q", word))
	}
	return make(rest)
}

// ttl is that of holds which nobody renews, and which no test waits for: longer than
// any step of a test takes.
const ttl = 5 * time.Minute

var keys atomic.Int64

// uniqueKey is a key that no other test uses.
func uniqueKey(t testing.TB) string {
	return fmt.Sprintf("%s/%d/%s", t.Name(), keys.Add(1), backend.NewID().Hex()[:8])
}

func request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: ttl}
}

func ownedRequest(key, owner string, ttl time.Duration) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), Owner: owner, TTL: ttl}
}

// granted asks for the hold and requires it.
func granted(t testing.TB, b backend.Backend, req backend.Request) (backend.Hold, backend.Grant) {
	t.Helper()
	g, err := b.Try(t.Context(), req)
	require.NoError(t, err)
	hold := backend.HoldOf(req)
	hold.Token = g.Token
	return hold, g
}

// eventually waits for something that has no signal.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 10*time.Millisecond, what)
}

func short(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// patience is for what must come: only what never comes takes longer on a busy machine.
const patience = time.Minute

// together runs the parts of a test at the same time: they wait more than they work, and
// so take one of the places of the -parallel flag together.
func together[P any](t *testing.T, parts map[string]P, f func(t *testing.T, part P)) {
	t.Helper()
	var all sync.WaitGroup
	for name, part := range parts {
		all.Go(func() { t.Run(name, func(t *testing.T) { f(t, part) }) })
	}
	all.Wait()
}
