// Package backendtest is what the tests of all backends that need a server have in common.
package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

var keys atomic.Int64

// UniqueKey is a key that no other test uses.
func UniqueKey(t testing.TB) string {
	return fmt.Sprintf("%s/%d/%s", t.Name(), keys.Add(1), backend.NewID().Hex()[:8])
}

// Granted asks for the hold and requires it.
func Granted(t testing.TB, b backend.Backend, req backend.Request) (backend.Hold, backend.Grant) {
	t.Helper()
	g, err := b.Try(t.Context(), req)
	require.NoError(t, err)
	hold := backend.HoldOf(req)
	hold.Token = g.Token
	return hold, g
}

// TokenOf is the token of a grant of the request, by a try or by a place in the queue. The
// key is released again.
func TokenOf(t testing.TB, b backend.Backend, req backend.Request, queued bool) uint64 {
	t.Helper()
	if !queued {
		hold, g := Granted(t, b, req)
		require.NoError(t, b.Release(t.Context(), hold))
		return g.Token
	}
	q, ok := backend.As[backend.Queuer](b)
	require.True(t, ok, "the backend has no queue")
	ticket, err := q.Enqueue(t.Context(), req)
	require.NoError(t, err)
	g, err := ticket.Wait(t.Context())
	require.NoError(t, err)
	require.NoError(t, ticket.Withdraw(t.Context()))
	return g.Token
}

// Eventually waits for something that has no signal. It asks less and less often. Only
// what never comes takes a minute on a busy machine.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 50*time.Millisecond) {
		require.True(t, time.Now().Before(end), "never: %s", what)
		time.Sleep(pause)
	}
}

// Opened opens something on a server that is there. An opening is bounded, and a busy
// machine may be slower than its bound: then it is opened again, for at most a minute.
func Opened[T any](t testing.TB, open func() (T, error)) T {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		v, err := open()
		if errors.Is(err, backend.ErrUnavailable) && time.Now().Before(end) {
			t.Logf("opened again: %v", err)
			continue
		}
		require.NoError(t, err)
		return v
	}
}

// Short is a context of the test that ends after d.
func Short(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
