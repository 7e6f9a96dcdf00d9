package mysqltest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// WireFault loses one request with a text, or its answer.
type WireFault struct {
	Lose    func(p *servertest.TCPProxy, text string)
	Applied bool // the server has carried it out
	Silent  bool // the connection does not break
	Own     bool // the connector is ours
}

// Wire is a proxy before a server with the fault that a test meets there.
type Wire struct {
	Proxy *servertest.TCPProxy
	Fault WireFault
}

// Lose loses the next request with the text, or its answer.
func (w Wire) Lose(text string) { w.Fault.Lose(w.Proxy, text) }

// Until is the context of the request that is lost.
func (w Wire) Until(t *testing.T) context.Context {
	t.Helper()
	return w.Fault.until(t, w.Proxy)
}

// WireFaults are all faults, with both connectors.
func WireFaults() map[string]WireFault {
	drop := func(p *servertest.TCPProxy, text string) { p.DropReplies(1, text) }
	stall := func(p *servertest.TCPProxy, text string) { p.StallReplies(1, text) }
	unsent := func(p *servertest.TCPProxy, text string) { p.DropRequests(1, text) }
	all := map[string]WireFault{}
	for kind, own := range map[string]bool{"driver's connector": false, "own connector": true} {
		all["reply dropped, "+kind] = WireFault{Lose: drop, Applied: true, Own: own}
		all["reply stalled, "+kind] = WireFault{Lose: stall, Applied: true, Silent: true, Own: own}
		all["request dropped, "+kind] = WireFault{Lose: unsent, Own: own}
	}
	return all
}

// until is a context for the request that is lost: where nothing else ends the wait for
// its answer, it is given up when the proxy has lost that.
func (f WireFault) until(t *testing.T, p *servertest.TCPProxy) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if !f.Silent {
		t.Cleanup(cancel)
		return ctx
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		for ctx.Err() == nil && p.Lost() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	})
	t.Cleanup(func() { cancel(); watch.Wait() })
	return ctx
}

// Unknown requires the error of a request whose answer did not come: no sentinel that
// promises that nothing has happened.
func Unknown(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	for _, promise := range []error{backend.ErrHeld, backend.ErrNotHeld, backend.ErrUnavailable, backend.ErrPermanent, backend.ErrInvalid, backend.ErrUnsupported} {
		require.NotErrorIs(t, err, promise)
	}
}
