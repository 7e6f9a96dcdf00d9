package servertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// TB is the part of testing.TB that this package uses. *testing.T, *testing.B
// and *testing.F have it.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(f func())
	Name() string
}

// The ways to get a server, as LOCK_TEST_SOURCE names them.
const (
	sourceEnv       = "env"
	sourceBinary    = "binary"
	sourceContainer = "container"
)

// finder looks for servers. Its fields are the machine it looks at.
type finder struct {
	getenv   func(name string) string
	lookPath func(file string) (string, error)
	freePort func() (int, error)
}

func systemFinder() *finder {
	return &finder{getenv: os.Getenv, lookPath: exec.LookPath, freePort: freePort}
}

// missingError says that a way to get a server is not open here.
// Anything else that goes wrong is a failure of the test.
type missingError struct{ reason string }

func (e *missingError) Error() string { return e.reason }

func missing(format string, args ...any) error {
	return &missingError{fmt.Sprintf(format, args...)}
}

// find returns a server that answers. Its error is a *missingError if there is
// none to be had.
func (f *finder) find(k *kind, c config) (*Server, error) {
	found, err := f.findCluster(k, c, 1)
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// findCluster is find for n servers that know of each other.
func (f *finder) findCluster(k *kind, c config, n int) ([]*Server, error) {
	ways := []struct {
		source string
		open   func(*kind, config, int) ([]*Server, error)
	}{
		{sourceEnv, f.fromEnv},
		{sourceBinary, f.fromBinary},
		{sourceContainer, f.fromContainer},
	}
	only := f.getenv("LOCK_TEST_SOURCE")
	switch only {
	case "", sourceEnv, sourceBinary, sourceContainer:
	default:
		return nil, fmt.Errorf("servertest: LOCK_TEST_SOURCE is %q; it takes env, binary or container", only)
	}
	if c.tls != nil && !k.speaksTLS {
		return nil, fmt.Errorf("servertest: %s: no TLS is set up for it", k.title)
	}
	if k.refuse != nil {
		if err := k.refuse(c); err != nil {
			return nil, fmt.Errorf("servertest: %s: %w", k.title, err)
		}
	}
	var reasons []string
	if only != "" {
		reasons = append(reasons, "LOCK_TEST_SOURCE="+only+" rules out the other ways")
	}
	for _, way := range ways {
		if only != "" && only != way.source {
			continue
		}
		s, err := way.open(k, c, n)
		if m := (*missingError)(nil); errors.As(err, &m) {
			reasons = append(reasons, m.reason)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("servertest: %s: %w", k.title, err)
		}
		return s, nil
	}
	return nil, missing("servertest: no %s server for this test: %s. To get one: %s; or start a Docker engine that has or can pull the image %s (%s_IMAGE names another); or set %s=host:port (and %s_PASSWORD)",
		k.title, strings.Join(reasons, "; "), k.install, f.image(k), k.env, k.env, k.env)
}

// report ends the test if find returned an error: a missing server is a skip,
// or a failure where it is required.
func (f *finder) report(t TB, k *kind, err error) {
	t.Helper()
	if err == nil {
		return
	}
	m := (*missingError)(nil)
	if !errors.As(err, &m) {
		t.Fatalf("%v", err)
		return
	}
	must, errRequire := required(f.getenv("LOCK_TEST_REQUIRE"), k)
	switch {
	case errRequire != nil:
		t.Fatalf("%v", errRequire)
	case must:
		t.Fatalf("%v. LOCK_TEST_REQUIRE=%s makes this a failure", m, f.getenv("LOCK_TEST_REQUIRE"))
	default:
		t.Skipf("%v", m)
	}
}

// private returns a server for one test and stops it at the test's cleanup.
func private(t TB, f *finder, k *kind, opts []Option) *Server {
	t.Helper()
	servers := cluster(t, f, k, 1, opts)
	if servers == nil {
		return nil
	}
	return servers[0]
}

// cluster returns n servers for one test, which know of each other, and stops
// them at the test's cleanup.
func cluster(t TB, f *finder, k *kind, n int, opts []Option) []*Server {
	t.Helper()
	servers, err := f.findCluster(k, newConfig(opts), n)
	if err != nil {
		f.report(t, k, err)
		return nil
	}
	t.Cleanup(func() {
		if err := stopAll(servers); err != nil {
			t.Logf("servertest: %s: cannot clean up: %v", k.title, err)
		}
	})
	for _, s := range servers {
		t.Logf("servertest: %v", s)
	}
	return servers
}

func stopAll(servers []*Server) error {
	var failed []error
	for _, s := range servers {
		failed = append(failed, s.stop())
	}
	return errors.Join(failed...)
}

// answered remembers which servers from the environment answered, or did not,
// so that a dead address costs the bound once and not once per test.
var answered memo[string]

func (f *finder) fromEnv(k *kind, c config, n int) ([]*Server, error) {
	addr := f.getenv(k.env)
	if addr == "" {
		return nil, missing("%s is not set", k.env)
	}
	if n > 1 {
		return nil, missing("this test needs %d servers that know of each other, and %s=%s is one", n, k.env, addr)
	}
	if c.own() {
		return nil, missing("this test needs a server of its own, with options or control, which the one at %s=%s is not", k.env, addr)
	}
	if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
		return nil, fmt.Errorf("%s=%s is not host:port", k.env, addr)
	}
	s := &Server{kind: k, source: sourceEnv, addr: addr, password: f.getenv(k.env + "_PASSWORD")}
	version, err := answered.get(k.name+" "+addr+" "+s.password, func() (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), readyBound)
		defer cancel()
		err := s.await(ctx)
		return s.Version(), err
	})
	if err != nil {
		return nil, fmt.Errorf("%s=%s: %w", k.env, addr, err)
	}
	s.version = version
	return []*Server{s}, nil
}

func (f *finder) fromBinary(k *kind, c config, n int) ([]*Server, error) {
	path, err := f.program(k)
	if err != nil {
		return nil, err
	}
	c.password = cmp.Or(c.password, k.password)
	return f.launch(k, c, sourceBinary, "127.0.0.1", n, func(member int, members []ports) (instance, error) {
		return newProcess(k, launch{
			config: c, binary: path, host: "127.0.0.1",
			port: members[member].client, member: member, members: members,
		})
	})
}

// program returns the path of the kind's program.
func (f *finder) program(k *kind) (string, error) {
	if k.program != nil {
		return k.program(f)
	}
	for _, name := range k.binaries {
		if path, err := f.lookPath(name); err == nil {
			return path, nil
		}
	}
	return "", missing("no %s on PATH", strings.Join(k.binaries, " or "))
}

func (f *finder) fromContainer(k *kind, c config, n int) ([]*Server, error) {
	if n > 1 {
		return nil, missing("%d servers that know of each other are started from a program only", n)
	}
	if c.tls != nil {
		return nil, missing("a server with certificates is started from a program only")
	}
	e, err := f.engine()
	if err != nil {
		return nil, missing("no Docker engine: %v", err)
	}
	image := f.image(k)
	if image == k.image && k.ownImage != "" && !e.has(image) && e.has(k.ownImage) {
		image = k.ownImage
	}
	if err := e.ensureImage(image); err != nil {
		return nil, missing("no container image %s: %v", image, err)
	}
	c.password = cmp.Or(c.password, k.password)
	return f.launch(k, c, sourceContainer, e.host, 1, func(_ int, at []ports) (instance, error) {
		return newContainer(e, k, c, image, at[0].client), nil
	})
}

// image is the container image of the kind.
func (f *finder) image(k *kind) string {
	if image := f.getenv(k.env + "_IMAGE"); image != "" {
		return image
	}
	return k.image
}

// memo runs a function once per key and keeps its result, errors too.
type memo[V any] struct {
	mu   sync.Mutex
	runs map[string]func() (V, error)
}

func (m *memo[V]) get(key string, run func() (V, error)) (V, error) {
	m.mu.Lock()
	if m.runs == nil {
		m.runs = map[string]func() (V, error){}
	}
	once, ok := m.runs[key]
	if !ok {
		once = sync.OnceValues(run)
		m.runs[key] = once
	}
	m.mu.Unlock()
	return once()
}
