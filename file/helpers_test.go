//go:build unix

package filelock

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

func TestMain(m *testing.M) {
	conformance.Child(conformanceOf)
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(runRole(role))
	}
	goleak.VerifyTestMain(m)
}

// newBackend opens a backend that is closed with the test.
func newBackend(t testing.TB, dir string) *files {
	t.Helper()
	b, err := newFiles(context.Background(), dir, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// fakeBoot replaces the boot clock, so that time passes when the test says so.
type fakeBoot struct{ at atomic.Int64 }

func (f *fakeBoot) set(b *files) {
	f.at.CompareAndSwap(0, int64(time.Hour))
	b.boot.now = f.at.Load
}

func (f *fakeBoot) pass(d time.Duration) { f.at.Add(int64(d)) }

func request(owner string, ttl time.Duration) backend.Request {
	return backend.Request{
		Key: "key", ID: backend.NewID(), Owner: owner, TTL: ttl,
		Holder: backend.Holder{Label: "label", Host: "host", PID: 7},
	}
}

func mustTry(t testing.TB, b *files, r backend.Request) (backend.Grant, backend.Hold) {
	t.Helper()
	g, err := b.Try(t.Context(), r)
	require.NoError(t, err)
	h := backend.HoldOf(r)
	h.Token = g.Token
	return g, h
}

// stateOf is the content of the state file, or nil.
func stateOf(t testing.TB, b *files, key string) []byte {
	t.Helper()
	data, err := os.ReadFile(b.placeOf(key).record())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	return data
}
