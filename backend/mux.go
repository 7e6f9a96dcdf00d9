package backend

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Opener opens a backend from a URL. It refuses every parameter that it does not
// know ([Query.Done]) and every setting that it cannot honour, checks the
// server's settings, and returns errors that match the sentinels of this package
// and contain no password.
type Opener func(ctx context.Context, u *URL, cfg OpenConfig) (Backend, error)

// OpenConfig is what the caller of lock.Open chose and a backend may need.
type OpenConfig struct {
	// TTL is the default TTL of the Locker. Backends whose TTL belongs to a
	// session use it; others ignore it.
	TTL time.Duration
	// Logger receives warnings about the server's settings. It is never nil.
	Logger *slog.Logger
	// LookOnly: the backend is for its abilities, with which an operator looks
	// at holds and ends them. What they need on the server and what is missing there, such
	// as a table, is not made: nobody holds anything then, and the Logger is told, since
	// a name may be mistyped.
	LookOnly bool
}

// Mux finds the opener for a URL by its scheme. The zero value is ready to use.
// It is safe for concurrent use.
type Mux struct {
	mu       sync.RWMutex
	openers  map[string]Opener
	declared []Declaration
}

// Declaration is what a form of a backend promises when its server is set up as
// the page of the backend says.
type Declaration struct {
	// URL is the least that a URL of that form has, such as "mysql://?mode=row".
	URL        string     `json:"url"`
	Guarantees Guarantees `json:"guarantees"`
}

// DefaultMux is the mux of lock.Open. Importing a backend package registers its
// schemes here. What another mux opens is given to lock.New.
var DefaultMux = new(Mux)

// Register adds a scheme. It panics if the scheme is already taken, since two
// packages that answer for one URL are a mistake of the program.
func (m *Mux) Register(scheme string, open Opener) {
	scheme = strings.ToLower(scheme)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !validScheme(scheme) || open == nil {
		panic(fmt.Sprintf("backend: Register(%q): the scheme is malformed or the opener is nil", scheme))
	}
	if _, dup := m.openers[scheme]; dup {
		panic(fmt.Sprintf("backend: scheme %q is registered twice", scheme))
	}
	if m.openers == nil {
		m.openers = map[string]Opener{}
	}
	m.openers[scheme] = open
}

// Declare makes known what a form of a backend promises, without opening one. It is
// called beside Register, once for each form.
func (m *Mux) Declare(url string, g Guarantees) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.declared = append(m.declared, Declaration{url, g})
}

// Declared lists what was declared, in the order of the URLs.
func (m *Mux) Declared() []Declaration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.SortedFunc(slices.Values(m.declared), func(a, b Declaration) int { return strings.Compare(a.URL, b.URL) })
}

// Schemes lists the registered schemes in alphabetical order.
func (m *Mux) Schemes() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]string, 0, len(m.openers))
	for s := range m.openers {
		out = append(out, s)
	}
	sort.Strings(out)
	return out
}

// importOf names the package that registers a scheme of this project.
var importOf = map[string]string{
	"mem":     "github.com/mortiselock/lock/memory",
	"file":    "github.com/mortiselock/lock/file",
	"redis":   "github.com/mortiselock/lock/redis",
	"rediss":  "github.com/mortiselock/lock/redis",
	"redlock": "github.com/mortiselock/lock/redis/redlock",
	"mysql":   "github.com/mortiselock/lock/mysql",
	"etcd":    "github.com/mortiselock/lock/etcd",
	"etcds":   "github.com/mortiselock/lock/etcd",
	"zk":      "github.com/mortiselock/lock/zookeeper",
	"zks":     "github.com/mortiselock/lock/zookeeper",
}

// Open parses the URL and calls the opener of its scheme. An unknown scheme is
// an error matching [ErrInvalid] that names the schemes that are known and, for
// a backend of this project, the import that is missing.
func (m *Mux) Open(ctx context.Context, rawURL string, cfg OpenConfig) (Backend, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	m.mu.RLock()
	open := m.openers[u.Scheme]
	m.mu.RUnlock()
	if open == nil {
		known := "no scheme is registered"
		if s := m.Schemes(); len(s) > 0 {
			known = "known schemes: " + strings.Join(s, ", ")
		}
		hint := "import the package of the backend, for example _ \"github.com/mortiselock/lock/memory\""
		if path, ok := importOf[u.Scheme]; ok {
			hint = fmt.Sprintf("add the import _ %q", path)
		}
		return nil, fmt.Errorf("%w: unknown URL scheme %q (%s); %s", ErrInvalid, u.Scheme, known, hint)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return open(ctx, u, cfg)
}
