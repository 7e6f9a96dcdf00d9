package servertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// kind describes one sort of server: all that the common mechanism needs to
// know about it.
type kind struct {
	name  string // in LOCK_TEST_REQUIRE, container names and logs: "redis"
	title string // in messages: "Redis"
	env   string // variable with the address; _PASSWORD and _IMAGE are appended to it

	binaries []string // programs, the first one found is used; a path with a slash is looked up as it is
	install  string   // how to get a program: "apt-get install redis-server"

	// program finds the program in place of binaries, for kinds of which the name
	// alone does not tell. Its error is made with missing if there is none. May be
	// nil.
	program func(f *finder) (path string, err error)

	extraPorts int           // ports beside the one for clients: of peers, for elections, for TLS
	speaksTLS  bool          // when asked to: on the last of the extra ports, or where it has none on that for clients
	password   string        // of servers started here for tests that did not choose one
	patience   time.Duration // for a started server to answer; 0 stands for readyBound

	// keepsData: a member of a cluster can't come back without its data.
	keepsData bool

	// refuse says why a server can't be started with this configuration. May be nil.
	refuse func(c config) error

	image         string                  // default container image, with its tag
	ownImage      string                  // of make images, for engines that have it and not image; may be empty
	containerPort int                     // TCP port inside the container
	containerEnv  func(c config) []string // environment of the container, NAME=value; may be nil
	containerData string                  // where the image keeps much that is often written; may be empty

	// prepare fills a new, empty data directory before the first start of a
	// program, and again after its data was thrown away. May be nil. Not called
	// for containers, whose images do it themselves.
	prepare func(ctx context.Context, l launch) error

	// command is the whole command line. For a container it starts with the
	// program's name, and nil stands for the image's own command.
	command func(l launch) []string

	// probe asks the server once, in its own protocol, whether it serves, and
	// returns its version. It must say no when the process that answers is
	// certainly another one than to.pid, so that a server of somebody else on the
	// same port is never taken for ours. A refusal that no waiting cures, such as
	// a wrong password, is wrapped with permanent: it ends the wait for a server
	// from the environment.
	probe func(ctx context.Context, to target) (version string, err error)

	// url is the address in the form that users of the backend write.
	url func(to target) string
}

// launch is what a command line is made from.
type launch struct {
	config
	binary  string  // path of the program; empty in a container
	host    string  // address to listen on
	dir     string  // data directory
	port    int     // port to listen on, as in members[member]
	member  int     // which of the members this is
	members []ports // of the whole cluster; one for a server that stands alone
}

// ports are the TCP ports of one server.
type ports struct {
	client int   // where it listens for clients
	extra  []int // as many as the kind's extraPorts
}

// tls is the last of the extra ports, which kinds that speak TLS use for it, or that for
// clients where they choose TLS on the connection.
func (p ports) tls() int {
	if len(p.extra) == 0 {
		return p.client
	}
	return p.extra[len(p.extra)-1]
}

func (k *kind) bound() time.Duration { return cmp.Or(k.patience, readyBound) }

// target is a server as its clients see it.
type target struct {
	addr     string
	password string
	pid      int // of the server process; 0 where it is not known
}

// permanentError is a refusal that will not pass by itself.
type permanentError struct{ err error }

func permanent(err error) error         { return &permanentError{err} }
func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

var kinds struct {
	sync.Mutex
	names []string
}

// register makes the kind's name known to LOCK_TEST_REQUIRE.
func register(k *kind) *kind {
	kinds.Lock()
	defer kinds.Unlock()
	if slices.Contains(kinds.names, k.name) {
		panic(fmt.Sprintf("servertest: kind %q is registered twice", k.name))
	}
	kinds.names = append(kinds.names, k.name)
	slices.Sort(kinds.names)
	return k
}

// required reports whether list, the value of LOCK_TEST_REQUIRE, demands the
// kind: the last name that fits decides, and "-" before a name takes it out. A name that no kind has is an error: a typing error must not turn the
// demand off.
func required(list string, k *kind) (bool, error) {
	kinds.Lock()
	known := slices.Clone(kinds.names)
	kinds.Unlock()
	found := false
	for name := range strings.SplitSeq(list, ",") {
		name, out := strings.CutPrefix(strings.TrimSpace(name), "-")
		switch {
		case name == "":
		case name == "all", name == k.name:
			found = !out
		case !slices.Contains(known, name):
			return false, fmt.Errorf("servertest: LOCK_TEST_REQUIRE names %q; it takes all, or a list of: %s", name, strings.Join(known, ", "))
		}
	}
	return found, nil
}
