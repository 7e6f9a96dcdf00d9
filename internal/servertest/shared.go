package servertest

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// Runner is the part of *testing.M that this package uses.
type Runner interface{ Run() int }

// Main runs the tests, stops the shared servers and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }
func Main(m Runner) int { return StopAfter(m).Run() }

// StopAfter returns a Runner that runs m and then stops the shared servers, for
// wrappers that look at the process afterwards:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(servertest.StopAfter(m)) }
func StopAfter(m Runner) Runner { return stopAfter{m, &shared, closeEngines} }

type stopAfter struct {
	runner  Runner
	servers *sharedServers
	engines func() error // closes them
}

func (r stopAfter) Run() int {
	code := r.runner.Run()
	if err := errors.Join(r.servers.stop(), r.engines()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// StopShared stops the shared servers and removes what they left. The next use
// starts new ones. Safe for concurrent use.
func StopShared() error { return shared.stop() }

var shared sharedServers

// sharedServers holds one server per kind, or the reason why there is none.
type sharedServers struct {
	mu      sync.Mutex
	entries map[string]*sharedEntry
}

type sharedEntry struct {
	settled chan struct{} // closed when server and err are set
	server  *Server
	err     error
}

// get returns the server of the kind. The first caller starts it, the others
// wait for that.
func (ss *sharedServers) get(t TB, f *finder, k *kind) *Server {
	t.Helper()
	ss.mu.Lock()
	e, found := ss.entries[k.name]
	if !found {
		e = &sharedEntry{settled: make(chan struct{})}
		if ss.entries == nil {
			ss.entries = map[string]*sharedEntry{}
		}
		ss.entries[k.name] = e
	}
	ss.mu.Unlock()

	if !found {
		e.start(f, k)
	}
	<-e.settled
	if e.err != nil {
		f.report(t, k, e.err)
		return nil
	}
	if e.server.inst != nil && !e.server.inst.running() {
		t.Fatalf("servertest: the shared %v died; the end of its log:\n%s", e.server, e.server.inst.log())
		return nil
	}
	t.Logf("servertest: shared %v", e.server)
	return e.server
}

func (e *sharedEntry) start(f *finder, k *kind) {
	defer close(e.settled)
	e.err = errors.New("servertest: the search for a server was cut short")
	if e.server, e.err = f.find(k, config{}); e.err == nil {
		e.server.shared = true
	}
}

func (ss *sharedServers) stop() error {
	ss.mu.Lock()
	entries := ss.entries
	ss.entries = nil
	ss.mu.Unlock()
	var failed []error
	for name, e := range entries {
		<-e.settled
		if e.server == nil {
			continue
		}
		if err := e.server.stop(); err != nil {
			failed = append(failed, fmt.Errorf("servertest: cannot clean up the shared %s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}
