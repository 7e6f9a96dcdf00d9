package etcdlock

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
)

func init() {
	backend.DefaultMux.Register("etcd", Opener)
	backend.DefaultMux.Register("etcds", Opener)
	backend.DefaultMux.Declare("etcd://", guarantees(2*time.Second))
}

// Options are the settings of an etcd backend. The zero value of each field, and a
// nil pointer, mean the default.
type Options struct {
	// Lock holds the settings of the Locker. Its Logger also receives the warnings
	// about the servers.
	Lock lock.Options

	// Prefix begins every etcd key, so that several applications can share a
	// cluster: at most 128 bytes of valid UTF-8 without control characters. A slash
	// is added at the end where it is missing. Lockers exclude each other only under
	// the same prefix. Default: "lock/".
	Prefix string
}

// New returns a [lock.Client] on a client of the caller's, which it neither changes nor
// closes.
//
// New asks every endpoint for its version, and the cluster for a lease of the
// smallest TTL and for permission on the prefix, bounded by ctx and by five
// seconds. Wrong credentials and a missing permission are ErrPermanent; a cluster
// that does not answer is ErrUnavailable; versions with known faults of leases are
// logged.
//
// The client library logs each request that is cancelled, which is normal here, as a
// warning ("retrying of unary invoker failed") to the logger of the client: standard
// error unless another one is set. Nothing but the client can prevent that. Give it a
// Logger that leaves warnings out, in its Config or by its method WithLogger, such as
// zap.NewNop(). Set DialKeepAliveTime, so that a member that stands still is noticed
// when no request waits for it.
func New(ctx context.Context, client *clientv3.Client, opts *Options) (*lock.Client, error) {
	b, err := NewBackend(ctx, client, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
}

// NewBackend is [New] for those who put something between the Locker and the
// backend. Closing the backend revokes its leases and leaves the client open.
func NewBackend(ctx context.Context, client *clientv3.Client, opts *Options) (backend.Backend, error) {
	opts = construct.Options(opts)
	b, err := newBackend(client, opts.Prefix)
	if err != nil {
		return nil, err
	}
	if err := b.checkServers(ctx, construct.Logger(opts.Lock.Logger)); err != nil {
		_ = b.Close()
		return nil, err
	}
	return b, nil
}

// etcdBackend implements backend.Backend, Queuer, LossNotifier, BatchRenewer,
// Inspector, ForceReleaser, Revoker, Lister, FloorRaiser and TokenTeller.
type etcdBackend struct {
	client     *clientv3.Client
	closesIt   bool
	tls        *tls.Config // of the client, if it was opened by URL
	prefix     string
	clock      backend.Clock
	guarantees backend.Guarantees
	floor      atomic.Pointer[floor] // nil: not read yet

	life context.Context // of requests that outlive their callers; ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	streams streams

	mu           sync.Mutex // never held across a request
	shared       map[time.Duration]*opening
	acquisitions map[backend.ID]*acquisition
	slots        slots
	lost         func(id backend.ID, cause error)
	closed       bool
}

var (
	_ backend.Backend       = (*etcdBackend)(nil)
	_ backend.Queuer        = (*etcdBackend)(nil)
	_ backend.LossNotifier  = (*etcdBackend)(nil)
	_ backend.BatchRenewer  = (*etcdBackend)(nil)
	_ backend.Inspector     = (*etcdBackend)(nil)
	_ backend.ForceReleaser = (*etcdBackend)(nil)
	_ backend.Revoker       = (*etcdBackend)(nil)
	_ backend.Lister        = (*etcdBackend)(nil)
	_ backend.FloorRaiser   = (*etcdBackend)(nil)
	_ backend.TokenTeller   = (*etcdBackend)(nil)
)

func newBackend(client *clientv3.Client, prefix string) (*etcdBackend, error) {
	if client == nil {
		return nil, fmt.Errorf("etcdlock: %w: the client is nil", backend.ErrInvalid)
	}
	if prefix == "" {
		prefix = defaultPrefix
	}
	if !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	if len(prefix) > maxPrefix || !utf8.ValidString(prefix) || strings.ContainsFunc(prefix, unicode.IsControl) {
		return nil, fmt.Errorf("etcdlock: %w: the prefix must be at most %d bytes of valid UTF-8 without control characters", backend.ErrInvalid, maxPrefix)
	}
	b := &etcdBackend{
		client: client, prefix: prefix, clock: backend.SystemClock(),
		guarantees:   guarantees(usualMinTTL),
		shared:       map[time.Duration]*opening{},
		acquisitions: map[backend.ID]*acquisition{},
		slots:        newSlots(),
		streams:      make(streams, mostStreams),
	}
	b.life, b.end = context.WithCancel(context.Background())
	return b, nil
}

// Guarantees says what is promised. The smallest TTL is the one that the cluster
// granted when the backend was opened.
func (b *etcdBackend) Guarantees() backend.Guarantees { return b.guarantees.Clone() }

// NotifyLoss registers who is told that the lease of a hold has ended on the
// server.
func (b *etcdBackend) NotifyLoss(lost func(id backend.ID, cause error)) { b.lost = lost }

// closeLimit bounds the revocation of leases at Close; they end by themselves.
const closeLimit = 500 * time.Millisecond

// Close revokes the leases that are left, in at most half a second, and closes the
// client if it was opened by URL.
func (b *etcdBackend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	left := map[*session]bool{}
	for _, o := range b.shared {
		if o.s != nil {
			left[o.s] = true
		}
	}
	for _, m := range b.acquisitions {
		left[m.session] = true
	}
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	var revoking sync.WaitGroup
	for s := range left {
		if !b.isGone(s) {
			revoking.Go(func() { _ = b.revokeLease(ctx, s.id) })
		}
	}
	revoking.Wait()
	b.end()
	b.work.Wait()
	if b.closesIt {
		if err := b.client.Close(); err != nil {
			return fmt.Errorf("etcdlock: close the client: %w", err)
		}
	}
	return nil
}

// detach runs f beside its caller, until it returns or the backend is closed. After
// that it returns false.
func (b *etcdBackend) detach(limit time.Duration, f func(ctx context.Context)) bool {
	return b.begin(func() {
		ctx, cancel := context.WithTimeout(b.life, limit)
		defer cancel()
		f(ctx)
	})
}

// begin is detach for what ends with the life of the backend by itself.
func (b *etcdBackend) begin(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.work.Go(f)
	return true
}
