package linear_test

import (
	"context"
	"errors"
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

// TestFlawedLocksAreCaught: each flaw breaks its rules, and a picture is written for each
// where go test -artifacts keeps it.
func TestFlawedLocksAreCaught(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules string // that catch it; without any it is healthy
		flaw  flawed
	}{
		"healthy": {},
		"a second holder now and then": {rules: "Linearizable LinearizableUnderFaults", flaw: flawed{try: func(f flawed, ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := f.Backend.Try(ctx, req)
			if err != nil && f.next()%5 == 0 {
				return backend.Grant{Token: uint64(time.Now().UnixMicro()), Holds: 1, Validity: backend.Validity{Sent: backend.RuntimeClock().Now(), For: req.TTL}}, nil
			}
			return g, err
		}}},
		"a token reset": {rules: "Linearizable LinearizableUnderFaults", flaw: flawed{try: func(f flawed, ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := f.Backend.Try(ctx, req)
			g.Token = g.Token%3 + 1
			return g, err
		}}},
		"a release that frees another's hold": {rules: "Linearizable LinearizableUnderFaults", flaw: flawed{end: func(f flawed, ctx context.Context, h backend.Hold) error {
			f.sh.mu.Lock()
			last := f.sh.last[h.Key]
			f.sh.mu.Unlock()
			_ = f.Backend.Release(ctx, last)
			return f.Backend.Release(ctx, h)
		}}},
		"entering again with a new token": {rules: "Linearizable LinearizableUnderFaults", flaw: flawed{try: func(f flawed, ctx context.Context, req backend.Request) (backend.Grant, error) {
			g, err := f.Backend.Try(ctx, req)
			if g.Holds > 1 {
				g.Token += uint64(f.next())
			}
			return g, err
		}}},
		"a release that comes again frees the next hold": {rules: "LinearizableUnderFaults", flaw: flawed{end: func(f flawed, ctx context.Context, h backend.Hold) error {
			err := f.Backend.Release(ctx, h)
			if errors.Is(err, backend.ErrNotHeld) {
				f.sh.mu.Lock()
				last := f.sh.last[h.Key]
				f.sh.mu.Unlock()
				_ = f.Backend.Release(ctx, last)
			}
			return err
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
			if c.rules == "" {
				assert.Equal(t, 2, rep.Counts().Pass, "%s", rep)
				return
			}
			for _, rule := range strings.Fields(c.rules) {
				res, ok := rep.Result(rule)
				require.True(t, ok)
				require.Equal(t, conformance.Fail, res.Verdict, "%s: %s", rule, res.Evidence)
				t.Logf("%s: %s", rule, res.Evidence)
				pictures, err := filepath.Glob(filepath.Join(t.ArtifactDir(), rule+"-*.html"))
				require.NoError(t, err)
				require.NotEmpty(t, pictures, "%s: %s", rule, res.Evidence)
				picture, err := os.ReadFile(pictures[0])
				require.NoError(t, err)
				assert.True(t, strings.HasPrefix(string(picture), "<!doctype html>"))
			}
		})
	}
}
