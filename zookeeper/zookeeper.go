package zklock

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
)

func init() {
	backend.DefaultMux.Register("zk", Opener)
	backend.DefaultMux.Register("zks", Opener)
	backend.DefaultMux.Declare("zk://", guarantees(lock.DefaultTTL))
}

// Options are the settings of a ZooKeeper backend. The zero value of each field, and
// a nil pointer, mean the default.
type Options struct {
	// Lock holds the settings of the Locker. Its TTL is asked for as the timeout of
	// the session, in whole milliseconds; servers accept from 2 to 20 ticks unless
	// they are told otherwise. A TTL that was asked for and is not granted is
	// refused with ErrInvalid; the default is replaced by the nearest that the
	// servers grant. All leases have this TTL: another WithTTL is refused.
	Lock lock.Options

	// Chroot is a path of the servers below which everything is, such as "/app". It
	// must exist. Default: none.
	Chroot string

	// Prefix is the path below the chroot of the node that has the locks, without a
	// slash at its ends. It is created if it does not exist. Lockers exclude each
	// other only under the same chroot and prefix. Default: "locks".
	Prefix string

	// User and Password are given to the servers in the digest scheme. Without TLS the
	// password crosses the network as it is. Default: none.
	User, Password string

	// TLS, if it is not nil, secures the connections, which then have to go to the
	// servers' secure client port (2281 where none is given). A server must show a
	// certificate for the host by which it is called, or for ServerName if that is set.
	// It must not be changed any more. Default: no TLS.
	TLS *tls.Config

	// ACL is put on every node that is created. Default: with a user, everything for
	// that user only; else everything for everybody. Who may delete below the prefix
	// can take any lock away.
	ACL []zk.ACL
}

const (
	defaultPrefix = "locks"
	defaultPort   = "2181"
	securePort    = "2281"
)

// New connects to the servers, which are host or host:port, and returns a [lock.Client]. It
// dials by itself since only then the session's timeout is known, which is the TTL of
// the Locker. Close closes the session.
//
// New is bounded by ctx. When none of the servers serves it returns ErrUnavailable; a
// chroot that does not exist is ErrInvalid; a prefix that has data of others, missing
// permission, which is how ZooKeeper answers a wrong password, and a certificate that
// one side does not accept are ErrPermanent.
func New(ctx context.Context, servers []string, opts *Options) (*lock.Client, error) {
	b, err := NewBackend(ctx, servers, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
}

// NewBackend is [New] for those who put something between the Locker and the backend.
func NewBackend(ctx context.Context, servers []string, opts *Options) (backend.Backend, error) {
	opts = construct.Options(opts)
	cfg, err := newConfig(servers, opts)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, opts.Lock.TTL != 0)
}

// config is the checked settings.
type config struct {
	servers []string
	chroot  string // empty, or with a leading slash
	prefix  string
	auth    []byte
	acl     []zk.ACL
	tls     *tls.Config // nil: none
	timeout time.Duration
	logger  *slog.Logger

	floor *atomic.Pointer[floor] // to nil: not read yet

	lookOnly bool // nothing is made that is missing
}

func (c *config) root() string            { return c.chroot + "/" + c.prefix }
func (c *config) dirOf(key string) string { return c.root() + "/" + encodeKey(key) }

func newConfig(servers []string, o *Options) (*config, error) {
	c := &config{floor: new(atomic.Pointer[floor]), chroot: strings.TrimSuffix(o.Chroot, "/"), prefix: cmp.Or(o.Prefix, defaultPrefix), acl: o.ACL, tls: o.TLS, timeout: cmp.Or(o.Lock.TTL, lock.DefaultTTL), logger: construct.Logger(o.Lock.Logger)}
	port := defaultPort
	if c.tls != nil {
		port = securePort
	}
	for _, s := range servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			s = net.JoinHostPort(strings.Trim(s, "[]"), port)
		}
		c.servers = append(c.servers, s)
	}
	if o.User != "" {
		c.auth = []byte(o.User + ":" + o.Password)
	}
	if c.acl == nil {
		c.acl = openACL
		if c.auth != nil {
			c.acl = creatorACL
		}
	}
	switch {
	case len(servers) == 0 || slices.Contains(servers, ""):
		return nil, invalid("at least one server is needed, and none may be empty")
	case c.timeout < 0 || c.timeout%time.Millisecond != 0 || c.timeout > maxTimeout:
		return nil, invalid("TTL %s: a session timeout is a positive number of milliseconds up to %s", c.timeout, maxTimeout)
	case !validPath(c.root()) || c.chroot != "" && !validPath(c.chroot):
		return nil, invalid("chroot and prefix must be paths of ZooKeeper: elements between slashes, none of them empty, . or .., without control characters")
	case c.root() == "/zookeeper" || strings.HasPrefix(c.root(), "/zookeeper/"):
		return nil, invalid("/zookeeper belongs to the servers; choose another prefix")
	case o.User == "" && o.Password != "" || strings.Contains(o.User, ":"):
		return nil, invalid("a password needs a user, and a user has no colon")
	}
	return c, nil
}

// maxTimeout is far above what servers grant.
const maxTimeout = 24 * time.Hour

var (
	openACL    = zk.WorldACL(zk.PermAll)
	creatorACL = zk.AuthACL(zk.PermAll)
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("zklock: %w: "+format, append([]any{backend.ErrInvalid}, args...)...)
}

func validPath(path string) bool {
	if !utf8.ValidString(path) || len(path) > 512 || !strings.HasPrefix(path, "/") {
		return false
	}
	for _, element := range strings.Split(path[1:], "/") {
		if element == "" || element == "." || element == ".." || strings.ContainsFunc(element, unicode.IsControl) {
			return false
		}
	}
	return true
}

// zkBackend implements backend.Backend, Queuer, LossNotifier, BatchRenewer, Inspector,
// ForceReleaser, Revoker, Lister, FloorRaiser and TokenTeller.
type zkBackend struct {
	clock      backend.Clock
	guarantees backend.Guarantees

	mu       sync.Mutex
	cfg      *config
	current  *session
	earlier  []*session // that may not have come to their end
	closed   bool
	notifier func(id backend.ID, cause error)
}

var (
	_ backend.Backend       = (*zkBackend)(nil)
	_ backend.Queuer        = (*zkBackend)(nil)
	_ backend.LossNotifier  = (*zkBackend)(nil)
	_ backend.BatchRenewer  = (*zkBackend)(nil)
	_ backend.Inspector     = (*zkBackend)(nil)
	_ backend.ForceReleaser = (*zkBackend)(nil)
	_ backend.Revoker       = (*zkBackend)(nil)
	_ backend.Lister        = (*zkBackend)(nil)
	_ backend.FloorRaiser   = (*zkBackend)(nil)
	_ backend.TokenTeller   = (*zkBackend)(nil)
)

// open connects and checks. exact refuses another timeout than that of cfg.
func open(ctx context.Context, cfg *config, exact bool) (backend.Backend, error) {
	b := &zkBackend{cfg: cfg, clock: backend.SystemClock()}
	s, err := b.session()
	if err != nil {
		return nil, err
	}
	granted, err := s.check(ctx)
	if err == nil && exact && granted != cfg.timeout {
		limit := "at least"
		if granted < cfg.timeout {
			limit = "at most"
		}
		err = invalid("TTL %s: the servers grant %s %s (minSessionTimeout and maxSessionTimeout, by default 2 and 20 times tickTime)", cfg.timeout, limit, granted)
	}
	if err != nil {
		_ = b.Close()
		return nil, err
	}
	next := *cfg
	next.timeout = granted
	b.mu.Lock()
	b.cfg = &next
	b.mu.Unlock()
	b.guarantees = guarantees(granted)
	return b, nil
}

// session is the session for new requests. When the last one was expired by the
// server, another begins.
func (b *zkBackend) session() (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, backend.ErrClosed
	}
	if b.current != nil && !b.current.ended() {
		return b.current, nil
	}
	s, err := begin(b.cfg, b.clock, b.expired)
	if err != nil {
		return nil, fmt.Errorf("zklock: %w: %w", backend.ErrInvalid, err)
	}
	if b.current != nil {
		b.earlier = slices.DeleteFunc(append(b.earlier, b.current), func(s *session) bool {
			select {
			case <-s.over:
				return true
			default:
				return false
			}
		})
	}
	b.current = s
	return s, nil
}

// expired tells of the holds that a session took with it, and begins another, for
// those who come next.
func (b *zkBackend) expired(held []backend.ID) {
	b.mu.Lock()
	lost := b.notifier
	b.mu.Unlock()
	for _, id := range held {
		if lost != nil {
			lost(id, fmt.Errorf("zklock: %w", backend.ErrSessionLost))
		}
	}
	_, _ = b.session()
}

// NotifyLoss implements backend.LossNotifier.
func (b *zkBackend) NotifyLoss(lost func(id backend.ID, cause error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notifier = lost
}

// Guarantees says what is promised. The TTL is the one that was granted at opening.
func (b *zkBackend) Guarantees() backend.Guarantees { return b.guarantees.Clone() }

// Close closes the session. Without a connection that takes a moment, and the server
// then ends the session when its timeout has passed.
func (b *zkBackend) Close() error {
	b.mu.Lock()
	b.closed = true
	all := append(b.earlier, b.current)
	b.mu.Unlock()
	for _, s := range all {
		s.end(false)
	}
	for _, s := range all {
		<-s.over
	}
	return nil
}

// check looks at what the URL or the options name, and returns the timeout that the
// server granted.
func (s *session) check(ctx context.Context) (time.Duration, error) {
	if err := s.ready(ctx); err != nil {
		return 0, fmt.Errorf("zklock: %w", describe(err))
	}
	s.mu.Lock()
	granted := s.timeout
	s.mu.Unlock()
	if chroot := s.cfg.chroot; chroot != "" {
		stat, err := s.exists(ctx, chroot)
		if err != nil {
			return 0, openError(err)
		}
		if stat == nil {
			return 0, invalid("the chroot %s does not exist; create it with: zkCli.sh -server %s create %s", chroot, s.cfg.servers[0], chroot)
		}
	}
	root := s.cfg.root()
	stat, err := s.exists(ctx, root)
	switch {
	case err != nil:
		return 0, openError(err)
	case stat == nil && s.cfg.lookOnly:
		s.cfg.logger.WarnContext(ctx, "zklock: the node of the prefix does not exist; nobody has locked anything there yet, or its name is not right", "prefix", root)
	case stat == nil:
		if err := s.makeRoot(ctx); err != nil {
			return 0, openError(err)
		}
	case stat.DataLength > 0 || stat.EphemeralOwner != 0:
		return 0, fmt.Errorf("zklock: %w: %s is a node with data that is not ours; choose another prefix", backend.ErrPermanent, root)
	}
	if s.cfg.lookOnly {
		return granted, nil
	}
	// Nothing is left by this, and it needs what every lock needs.
	probe := root + "/%" + rand.Text()
	a := askAgain(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		return c.Multi(&zk.CreateRequest{Path: probe, Acl: s.cfg.acl, Flags: zk.FlagPersistent}, &zk.DeleteRequest{Path: probe, Version: -1})
	})
	if a.err != nil {
		return 0, openError(a.err)
	}
	if err := s.checkFloor(ctx); err != nil {
		return 0, openError(err)
	}
	return granted, nil
}

func (s *session) exists(ctx context.Context, path string) (*zk.Stat, error) {
	a := askAgain(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		found, stat, err := c.Exists(path)
		if !found {
			stat = nil
		}
		return stat, err
	})
	return a.value, a.err
}

func openError(err error) error {
	if gaveUp(err) || lostReply(err) {
		return fmt.Errorf("zklock: opening: %w: no answer: %w", backend.ErrUnavailable, err)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return invalid("a node that was there a moment ago is gone: %v", err)
	}
	return fmt.Errorf("zklock: opening: %w", describe(err))
}
