package linear_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	memlock "github.com/mortiselock/lock/memory"
)

// flawed is a memory backend without its abilities, with one flaw.
type flawed struct {
	backend.Backend
	sh  *shared
	try func(f flawed, ctx context.Context, req backend.Request) (backend.Grant, error)
	end func(f flawed, ctx context.Context, h backend.Hold) error
}

// shared is what the clients of one store share.
type shared struct {
	mu   sync.Mutex
	n    int
	last map[string]backend.Hold
}

func (f flawed) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if f.try != nil {
		return f.try(f, ctx, req)
	}
	g, err := f.Backend.Try(ctx, req)
	if err == nil {
		f.sh.mu.Lock()
		f.sh.last[req.Key] = backend.HoldOf(req)
		f.sh.mu.Unlock()
	}
	return g, err
}

func (f flawed) Release(ctx context.Context, h backend.Hold) error {
	if f.end != nil {
		return f.end(f, ctx, h)
	}
	return f.Backend.Release(ctx, h)
}

func (f flawed) next() int {
	f.sh.mu.Lock()
	defer f.sh.mu.Unlock()
	f.sh.n++
	return f.sh.n
}

// TestFlawedLocksAreCaught: each flaw breaks the rule, and a picture is written
// where go test -artifacts keeps it.
func TestFlawedLocksAreCaught(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		healthy bool
		flaw    flawed
	}{
		"healthy": {healthy: true},
		"a second holder now and then": {flaw: flawed{try: func(f flawed, ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := f.Backend.Try(ctx, req)
			if err != nil && f.next()%5 == 0 {
				return backend.Grant{Token: uint64(time.Now().UnixMicro()), Holds: 1, Validity: backend.Validity{Sent: backend.RuntimeClock().Now(), For: req.TTL}}, nil
			}
			return g, err
		}}},
		"a token reset": {flaw: flawed{try: func(f flawed, ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := f.Backend.Try(ctx, req)
			g.Token = g.Token%3 + 1
			return g, err
		}}},
		"a release that frees another's hold": {flaw: flawed{end: func(f flawed, ctx context.Context, h backend.Hold) error {
			f.sh.mu.Lock()
			last := f.sh.last[h.Key]
			f.sh.mu.Unlock()
			_ = f.Backend.Release(ctx, last)
			return f.Backend.Release(ctx, h)
		}}},
		"entering again with a new token": {flaw: flawed{try: func(f flawed, ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := f.Backend.Try(ctx, req)
			if g.Holds > 1 {
				g.Token += uint64(f.next())
			}
			return g, err
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memlock.NewStore(nil)
			sh := &shared{last: map[string]backend.Hold{}}
			rep, err := conformance.Check(t.Context(), conformance.Config{
				OpenBackend: func(ctx context.Context) (backend.Backend, error) {
					f := c.flaw
					var err error
					f.Backend, err = memlock.NewBackend(ctx, &memlock.Options{Store: store})
					f.sh = sh
					return f, err
				},
				TTL: 300 * time.Millisecond, Budget: 10 * time.Second,
				Only:  []string{"Linearizable", "LinearizableUnderFaults"},
				Judge: linear.Judge(t),
			})
			require.NoError(t, err)
			if c.healthy {
				assert.Equal(t, 2, rep.Counts().Pass, "%s", rep)
				return
			}
			res, ok := rep.Result("Linearizable")
			require.True(t, ok)
			require.Equal(t, conformance.Fail, res.Verdict, "%s", res.Evidence)
			t.Logf("%s", res.Evidence)
			pictures, err := filepath.Glob(filepath.Join(t.ArtifactDir(), "Linearizable-*.html"))
			require.NoError(t, err)
			require.NotEmpty(t, pictures, "%s", res.Evidence)
			picture, err := os.ReadFile(pictures[0])
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(string(picture), "<!doctype html>"))
		})
	}
}
