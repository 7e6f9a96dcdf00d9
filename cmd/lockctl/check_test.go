//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// flawedScheme is a backend that lets anybody release anybody's hold. Only the
// tests in this process know it.
const flawedScheme = "flawed"

func init() {
	store := memlock.NewStore(nil)
	backend.DefaultMux.Register(flawedScheme, func(ctx context.Context, _ *backend.URL, _ backend.OpenConfig) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		return careless{b}, err
	})
}

type careless struct{ backend.Backend }

func (careless) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name: "careless", Reach: backend.ReachNetwork, MinTTL: 10 * time.Millisecond, TTLGrain: 1,
		Token: backend.TokenCounter, Waiting: backend.WaitPoll, ManualRenewal: true, WithoutRenewal: true,
	}
}

func (c careless) Clock() backend.Clock { return c.Backend.(backend.Clocked).Clock() }

func (c careless) Release(ctx context.Context, h backend.Hold) error {
	rec, err := c.Backend.(backend.Inspector).Inspect(ctx, h.Key)
	if err != nil {
		return err
	}
	return c.Backend.(backend.ForceReleaser).ForceRelease(ctx, h.Key, rec.Token)
}

func TestCheckStartsProcesses(t *testing.T) {
	t.Parallel()
	status, out, errs := run(t, "file:"+t.TempDir(), "check", "--only", "CrashFreesProcess", "--budget", "5s", "--format", "json")
	if !green(t, status, errs) {
		return
	}
	var rep conformance.Report
	require.NoError(t, json.Unmarshal([]byte(out), &rep))
	res, ok := rep.Result("CrashFreesProcess")
	require.True(t, ok)
	assert.Equal(t, conformance.Pass, res.Verdict, res.Evidence)
}

func TestCheckOfAFlawedLock(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "markdown", "json", "html"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			status := execute([]string{"check", "--url", flawedScheme + ":", "--only", "ReleaseOwnOnly,HandsOut", "--budget", "3s", "--format", format}, &out, &errs)
			assert.Equal(t, exitFree, status, errs.String())
			assert.Contains(t, errs.String(), "broken: ReleaseOwnOnly")
			assert.NotContains(t, errs.String(), "broken: HandsOut")
			assert.Contains(t, out.String(), "ReleaseOwnOnly")
			assert.Contains(t, strings.ToLower(out.String()), "fail")
		})
	}
}

// slowScheme is a healthy lock, whose requests take a while and whose leases are short
// beside that.
const slowScheme = "slow"

type slowBackend struct{ backend.Backend }

func (b slowBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := b.Backend.Try(ctx, req)
	if err == nil && !strings.Contains(req.Key, "/alive/") { // not where it is watched
		time.Sleep(2 * req.TTL)
	}
	return g, err
}

func (b slowBackend) Guarantees() backend.Guarantees {
	g := b.Backend.Guarantees()
	g.MinTTL, g.MaxTTL = 200*time.Millisecond, 200*time.Millisecond
	return g
}

func init() {
	store := memlock.NewStore(nil)
	backend.DefaultMux.Register(slowScheme, func(ctx context.Context, _ *backend.URL, _ backend.OpenConfig) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		return slowBackend{b}, err
	})
}

// What cannot be decided is neither a pass nor a broken promise.
func TestCheckThatIsInconclusive(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	status := execute([]string{"check", "--url", slowScheme + ":", "--ttl", "200ms", "--only", "RefusalLeavesNothing", "--budget", "3s", "--format", "json"}, &out, &errs)
	assert.Equal(t, exitHeld, status, errs.String())
	assert.Contains(t, errs.String(), "too slow for a verdict on: RefusalLeavesNothing")
	var rep conformance.Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &rep))
	res, _ := rep.Result("RefusalLeavesNothing")
	assert.Equal(t, conformance.Inconclusive, res.Verdict, res.Evidence)
}

// crowdedScheme is a lock on a server that soon has no connection left.
const crowdedScheme = "crowded"

// crowd is how often it was opened.
var crowd atomic.Int32

func init() {
	store := memlock.NewStore(nil)
	backend.DefaultMux.Register(crowdedScheme, func(ctx context.Context, _ *backend.URL, _ backend.OpenConfig) (backend.Backend, error) {
		if crowd.Add(1) > 2 {
			return nil, fmt.Errorf("mysqllock: open: %w: Error 1040 (08004): Too many connections", backend.ErrUnavailable)
		}
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		return careless{b}, err
	})
}

// A server without a connection left breaks no rule, and proves none.
func TestCheckOfAFullServer(t *testing.T) {
	t.Parallel()
	crowd.Store(0)
	var out, errs bytes.Buffer
	status := execute([]string{"check", "--url", crowdedScheme + ":", "--only", "HandsOut,ReleaseFrees", "--budget", "3s"}, &out, &errs)
	assert.Equal(t, exitUnavailable, status, errs.String())
	assert.NotContains(t, errs.String(), "broken:")
	assert.Contains(t, errs.String(), "raise max_connections")
	assert.True(t, strings.HasPrefix(out.String(), "Incomplete: the server had no connection left. "), out.String())
	assert.Contains(t, out.String(), " 0 fail, ")
	assert.Contains(t, out.String(), "the server had no connection left while the rule was tried")
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	url := "file:" + t.TempDir()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"argument":     {[]string{"redis://x:hunter2@cache"}, "the backend is given with --url"},
		"format":       {[]string{"--format", "pdf"}, "text, json, markdown or html"},
		"unknown rule": {[]string{"--only", "Nonsense"}, "Nonsense"},
		"ttl":          {[]string{"--ttl", "-1s"}, "must be positive"},
		"short ttl":    {[]string{"--ttl", "1ms"}, "at least 100ms"},
		"budget":       {[]string{"--budget", "0s"}, "must be positive"},
		"output":       {[]string{"--output", filepath.Join(t.TempDir(), "no", "dir")}, "--output"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, out, errs := run(t, url, append([]string{"check"}, c.args...)...)
			assert.Equal(t, exitUsage, status, errs)
			assert.Empty(t, out)
			assert.Contains(t, errs, c.want)
			assert.NotContains(t, errs, "hunter2")
		})
	}
}

// fleetingScheme is a lock on a server that goes away when the check has opened one client.
const fleetingScheme = "fleeting"

func init() {
	var opened atomic.Bool
	backend.DefaultMux.Register(fleetingScheme, func(ctx context.Context, _ *backend.URL, _ backend.OpenConfig) (backend.Backend, error) {
		if opened.Swap(true) {
			return nil, fmt.Errorf("open: %w: EOF", backend.ErrUnavailable)
		}
		return memlock.NewBackend(ctx, nil)
	})
}

// A server that goes away before the first rule is no mistake of who called.
func TestCheckOfAServerThatGoesAtOnce(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	assert.Equal(t, exitUnavailable, execute([]string{"check", "--url", fleetingScheme + ":"}, &out, &errs))
	assert.Contains(t, errs.String(), "the backend stopped answering during the check")
	assert.Contains(t, errs.String(), "look at the server and start again")
	assert.Empty(t, out.String())
}

// narrowScheme is a lock on a server that says that it has few connections left.
const narrowScheme = "narrow"

func init() {
	store := memlock.NewStore(nil)
	backend.DefaultMux.Register(narrowScheme, func(ctx context.Context, _ *backend.URL, _ backend.OpenConfig) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store})
		return narrow{careless{b}}, err
	})
}

type narrow struct{ careless }

func (narrow) Room(context.Context) (int, error) { return 148, nil }

// A whole check does not begin where it could not end.
func TestCheckAsksForRoom(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	assert.Equal(t, exitUnavailable, execute([]string{"check", "--url", narrowScheme + ":"}, &out, &errs))
	assert.Contains(t, errs.String(), "the server takes 148 more connections, and a check of MySQL with mode=row needs about 200; raise max_connections")
	assert.Empty(t, out.String())
	assert.Equal(t, exitOK, execute([]string{"check", "--url", narrowScheme + ":", "--only", "HandsOut", "--budget", "1s"}, &out, &errs), errs.String())
}
