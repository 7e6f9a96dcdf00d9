package servertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Server is a server that answered when it was handed out. Its readers (Addr,
// URL, Pid, Version, CanControl) are safe for concurrent use. Kill, Freeze,
// Resume and Restart are called by one goroutine at a time, the test's own,
// since they may end the test.
type Server struct {
	kind      *kind
	source    string
	addr      string
	tlsAddr   string // "" if it speaks no TLS
	password  string
	shared    bool
	clustered bool     // one of several members
	inst      instance // nil for a server from the environment

	mu      sync.Mutex
	version string
	frozen  bool
}

// Addr returns host:port. It stays the same across Restart.
func (s *Server) Addr() string { return s.addr }

// TLSAddr returns the host:port at which a server that was started WithTLS speaks
// TLS, and "" for others. It stays the same across Restart.
func (s *Server) TLSAddr() string { return s.tlsAddr }

// URL returns the server's URL, with its password if it has one. Don't print it.
func (s *Server) URL() string { return s.kind.url(s.target()) }

// URLAt is URL with another address: that of a proxy before this server.
func (s *Server) URLAt(addr string) string {
	to := s.target()
	to.addr = addr
	return s.kind.url(to)
}

// Password returns the server's password, or "".
func (s *Server) Password() string { return s.password }

// Version returns the version that the server gave when it was last started.
func (s *Server) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Pid returns the process id of a server that runs as a child of this process,
// and 0 for a container, for a server from the environment and while the
// server is down. It changes on Restart.
func (s *Server) Pid() int {
	if s.inst == nil {
		return 0
	}
	return s.inst.pid()
}

// CanControl reports whether Kill, Freeze, Resume and Restart may be used: not
// on a server from the environment and not on a shared one.
func (s *Server) CanControl() bool { return s.inst != nil && !s.shared }

// String describes the server for a log, without its password.
func (s *Server) String() string {
	if s.inst == nil {
		return fmt.Sprintf("%s %s at %s, from %s", s.kind.title, s.Version(), s.addr, s.kind.env)
	}
	return fmt.Sprintf("%s %s at %s, %v", s.kind.title, s.Version(), s.addr, s.inst)
}

func (s *Server) target() target { return target{s.addr, s.password, s.Pid()} }

// Kill ends the server at once, like a crash (SIGKILL), and returns when it is
// gone. A frozen server can be killed; a server that is down stays down. It skips
// the test if the server comes from the environment.
func (s *Server) Kill(t TB) {
	t.Helper()
	if !s.mayControl(t, "kill") {
		return
	}
	if err := s.inst.kill(); err != nil {
		t.Fatalf("servertest: cannot kill %v: %v", s, err)
		return
	}
	s.setFrozen(false)
}

// Freeze stops the server's threads without closing its connections (SIGSTOP,
// docker pause), and returns when all of them stand still. The kernel goes on
// accepting connections and bytes, and nothing answers. Freezing a frozen server
// changes nothing. It skips the test if the server comes from the environment.
func (s *Server) Freeze(t TB) {
	t.Helper()
	if !s.mayControl(t, "freeze") || !s.mustRun(t, "freeze") || s.isFrozen() {
		return
	}
	err := s.inst.freeze()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("servertest: processes can't be frozen on this system; LOCK_TEST_SOURCE=container may help")
		return
	}
	if err != nil {
		t.Fatalf("servertest: cannot freeze %v: %v", s, err)
		return
	}
	s.setFrozen(true)
}

// Resume lets a frozen server go on and returns when it answers. What clients
// sent in the meantime is carried out first or soon after. It skips the test if
// the server comes from the environment.
func (s *Server) Resume(t TB) {
	t.Helper()
	if !s.mayControl(t, "resume") || !s.mustRun(t, "resume") {
		return
	}
	if s.isFrozen() {
		if err := s.inst.resume(); err != nil {
			t.Fatalf("servertest: cannot resume %v: %v", s, err)
			return
		}
		s.setFrozen(false)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.kind.bound())
	defer cancel()
	if err := s.await(ctx); err != nil {
		t.Fatalf("servertest: %s does not answer after Resume: %v", s.kind.title, err)
	}
}

// Restart starts the server again on the same port and returns when it
// answers. A server that runs is killed first. With keepData it starts on the
// files that it left, which hold what its persistence had written (see
// WithPersistence); without, on none. It skips the test if the server comes from
// the environment.
func (s *Server) Restart(t TB, keepData bool) {
	t.Helper()
	if !s.mayControl(t, "restart") {
		return
	}
	if !keepData && s.clustered && s.kind.keepsData {
		t.Fatalf("servertest: can't restart %v without its data: the cluster would not take it back", s)
		return
	}
	if err := s.restart(keepData); err != nil {
		t.Fatalf("servertest: cannot restart %s: %v", s.kind.title, err)
	}
}

func (s *Server) restart(keepData bool) error {
	if err := s.inst.kill(); err != nil {
		return err
	}
	s.setFrozen(false)
	if !keepData {
		if err := s.inst.wipe(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.kind.bound())
	defer cancel()
	for {
		err := s.up(ctx)
		if !errors.Is(err, errPortTaken) {
			return err
		}
		// A descendant of the old server may hold the port for a moment more.
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// stop ends a server that was started here and removes what it left.
func (s *Server) stop() error {
	if s.inst == nil {
		return nil
	}
	return s.inst.remove()
}

// mayControl ends the test if the server is not the test's to disturb.
func (s *Server) mayControl(t TB, what string) bool {
	t.Helper()
	switch {
	case s.inst == nil:
		t.Skipf("servertest: can't %s %v: a server from the environment is not under control; unset %s, or ask for the server WithControl", what, s, s.kind.env)
	case s.shared:
		t.Fatalf("servertest: can't %s %v: other tests share it; ask for a server of this test's own", what, s)
	default:
		return true
	}
	return false
}

// mustRun ends the test if the server is down.
func (s *Server) mustRun(t TB, what string) bool {
	t.Helper()
	if s.inst.running() {
		return true
	}
	t.Fatalf("servertest: can't %s %v: it is not running; the end of its log:\n%s", what, s, s.inst.log())
	return false
}

func (s *Server) isFrozen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

func (s *Server) setFrozen(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = frozen
}
