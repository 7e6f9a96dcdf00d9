package rules_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// lockServer is a lock in memory that is reached by TCP. A request and its answer are a
// line each, and those of one connection follow each other.
func lockServer(t *testing.T) (addr string) {
	t.Helper()
	b, err := memlock.NewBackend(t.Context(), &memlock.Options{Store: memlock.NewStore(nil)})
	require.NoError(t, err)
	ctx := t.Context()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
		_ = b.Close()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // such as too many open files, for now
				time.Sleep(5 * time.Millisecond)
				continue
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				in, out := bufio.NewScanner(conn), json.NewEncoder(conn)
				for in.Scan() {
					var req farRequest
					if json.Unmarshal(in.Bytes(), &req) != nil {
						return
					}
					if req.Op == "try here" { // for as long as the connection is there, at most
						end := req
						end.Op = "release"
						defer end.serve(ctx, b)
					}
					if out.Encode(req.serve(ctx, b)) != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

type farRequest struct {
	Op, Key, Owner, ID string
	TTL                time.Duration
	Token              uint64
}

type farAnswer struct {
	Token   uint64
	Holds   int
	Refusal string // empty: it was done
}

// refusals are the errors that cross the network.
var refusals = []error{
	backend.ErrHeld, backend.ErrNotHeld, backend.ErrTooManyHolds, backend.ErrInvalid, backend.ErrUnsupported, backend.ErrPermanent,
}

func (r farRequest) serve(ctx context.Context, b backend.Backend) (a farAnswer) {
	id, err := backend.ParseID(r.ID)
	if err == nil {
		switch hold := (backend.Hold{Key: r.Key, ID: id, Owner: r.Owner, TTL: r.TTL, Token: r.Token}); r.Op {
		case "try", "try here":
			var g backend.Grant
			g, err = b.Try(ctx, backend.Request{Key: r.Key, ID: id, Owner: r.Owner, TTL: r.TTL})
			a.Token, a.Holds = g.Token, g.Holds
		case "renew":
			_, err = b.Renew(ctx, hold)
		case "release":
			err = b.Release(ctx, hold)
		case "delete": // whosever it is
			var rec backend.Record
			if rec, err = b.(backend.Inspector).Inspect(ctx, r.Key); err == nil {
				err = b.(backend.ForceReleaser).ForceRelease(ctx, r.Key, rec.Token)
			}
		case "wait": // until it is free
			for ; err == nil && ctx.Err() == nil; time.Sleep(time.Millisecond) {
				_, err = b.(backend.Inspector).Inspect(ctx, r.Key)
			}
			err = nil
		}
	}
	if err != nil {
		a.Refusal = err.Error()
		for _, known := range refusals {
			if errors.Is(err, known) {
				a.Refusal = known.Error()
			}
		}
	}
	return a
}

// farBackend is a client of a lockServer.
type farBackend struct {
	backend.Backend // for the guarantees
	addr            string
	ask             func(ctx context.Context, req farRequest) (farAnswer, error)
	obeys, greets   bool

	mu     sync.Mutex
	idle   []net.Conn
	closed bool
}

func openFar(ctx context.Context, addr string) (*farBackend, error) {
	model, err := memlock.NewBackend(ctx, &memlock.Options{Store: memlock.NewStore(nil)})
	if err != nil {
		return nil, err
	}
	f := &farBackend{Backend: model, addr: addr}
	f.ask = f.send
	return f, nil
}

// send makes one request on a connection of its own for that time.
func (f *farBackend) send(ctx context.Context, req farRequest) (a farAnswer, err error) {
	conn, err := f.conn(ctx)
	if err != nil {
		return a, errors.Join(backend.ErrUnavailable, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err = json.NewEncoder(conn).Encode(req); err == nil {
		var line string
		if line, err = bufio.NewReader(conn).ReadString('\n'); err == nil {
			err = json.Unmarshal([]byte(line), &a)
		}
	}
	if err != nil || !stop() {
		_ = conn.Close()
	} else {
		f.put(conn)
	}
	if err != nil {
		return a, errors.Join(backend.ErrOutcomeUnknown, err, ctx.Err())
	}
	if a.Refusal == "" {
		return a, nil
	}
	for _, known := range refusals {
		if a.Refusal == known.Error() {
			return a, known
		}
	}
	return a, errors.New(a.Refusal)
}

func (f *farBackend) conn(ctx context.Context) (net.Conn, error) {
	f.mu.Lock()
	if n := len(f.idle); n > 0 {
		c := f.idle[n-1]
		f.idle = f.idle[:n-1]
		f.mu.Unlock()
		return c, nil
	}
	f.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, "tcp", f.addr)
}

func (f *farBackend) put(c net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = c.Close()
		return
	}
	f.idle = append(f.idle, c)
}

func farOf(op string, h backend.Hold) farRequest {
	return farRequest{Op: op, Key: h.Key, Owner: h.Owner, ID: h.ID.Hex(), TTL: h.TTL, Token: h.Token}
}

func (f *farBackend) Guarantees() backend.Guarantees {
	if f.greets {
		_, _ = f.ask(context.Background(), farRequest{Op: "hello"})
	}
	g := f.Backend.Guarantees()
	g.Name, g.Reach, g.Waiting = "far", backend.ReachNetwork, backend.WaitPoll
	return g
}

func (f *farBackend) Interruptible() bool { return f.obeys }

func (f *farBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	sent := backend.SystemClock().Now()
	a, err := f.ask(ctx, farOf("try", backend.HoldOf(req)))
	if errors.Is(err, backend.ErrHeld) && !errors.Is(err, backend.ErrOutcomeUnknown) {
		err = &backend.HeldError{Key: req.Key}
	}
	if err != nil {
		return backend.Grant{}, err
	}
	return backend.Grant{Token: a.Token, Holds: a.Holds, Validity: backend.Validity{Sent: sent, For: backend.ValidFor(req.TTL)}}, nil
}

func (f *farBackend) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	sent := backend.SystemClock().Now()
	if _, err := f.ask(ctx, farOf("renew", h)); err != nil {
		return backend.Validity{}, err
	}
	return backend.Validity{Sent: sent, For: backend.ValidFor(h.TTL)}, nil
}

func (f *farBackend) Release(ctx context.Context, h backend.Hold) error {
	_, err := f.ask(ctx, farOf("release", h))
	return err
}

func (f *farBackend) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = !f.obeys
	for _, c := range f.idle {
		_ = c.Close()
	}
	return f.Backend.Close()
}

const farTTL = 400 * time.Millisecond

// farLock is a Config of a lockServer, whose Lockers are changed.
func farLock(t *testing.T, change func(f *farBackend, m *lockerMutant)) conformance.Config {
	return conformance.Config{
		Proxy: &conformance.Proxy{
			Server: lockServer(t),
			Open: func(ctx context.Context, addr string) (lock.Locker, error) {
				f, err := openFar(ctx, addr)
				if err != nil {
					return nil, err
				}
				l, err := lock.New(f, &lock.Options{TTL: farTTL})
				if err != nil {
					return nil, err
				}
				m := &lockerMutant{Client: l, try: l.TryAcquire, acquire: l.Acquire, close: l.Close}
				if change != nil {
					change(f, m)
				}
				return m, nil
			},
		},
		TTL: farTTL, Budget: 5 * time.Second,
	}
}

// TestNetworkOfAHealthyLock runs the rules on a lock that is right, with only
// Config.Proxy.
func TestNetworkOfAHealthyLock(t *testing.T) {
	t.Parallel()
	cfg := farLock(t, nil)
	cfg.Only = []string{"network", "Exclusive"}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	tried := map[string]bool{}
	for _, r := range rep.Results {
		tried[r.Rule] = true
		assert.Equal(t, conformance.Pass, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		t.Log(r.Rule, r.Seconds, r.Evidence)
	}
	for _, r := range conformance.Rules() {
		assert.Equal(t, r.Subject == "network" || r.Name == "Exclusive", tried[r.Name], r.Name)
	}
}

// TestNetworkWithoutAFirstAnswer leaves one request without an answer before anything is disturbed, as
// a busy machine may. It is no fault of the lock, and the case is tried again.
func TestNetworkWithoutAFirstAnswer(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	cfg := farLock(t, func(f *farBackend, _ *lockerMutant) {
		send := f.ask
		f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
			if req.Op == "try" && strings.HasSuffix(req.Key, "-first") && silent.CompareAndSwap(false, true) {
				<-ctx.Done()
				return farAnswer{}, fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, ctx.Err())
			}
			return send(ctx, req)
		}
	})
	cfg.Only = []string{"CutIsKeptOrTold"}
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	require.True(t, silent.Load())
	for _, r := range rep.Results {
		assert.Equal(t, conformance.Pass, r.Verdict, "%s: %s", r.Rule, r.Evidence)
	}
}

// failsThroughNetwork requires that each of the rules fails, on a real network.
func failsThroughNetwork(t *testing.T, cfg conformance.Config, rules, says string) {
	t.Helper()
	cfg.Only = strings.Fields(rules)
	rep, err := conformance.Check(t.Context(), cfg)
	require.NoError(t, err)
	for _, r := range rep.Results {
		assert.Equal(t, conformance.Fail, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		assert.Contains(t, r.Evidence, says, r.Rule)
		t.Log(r.Rule, r.Seconds, r.Evidence)
	}
}

// sentAgain sends a try that failed once more, as if it were another.
func sentAgain(op string) func(f *farBackend, _ *lockerMutant) {
	return func(f *farBackend, _ *lockerMutant) {
		var names sync.Map
		f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
			if other, ok := names.Load(req.ID); ok {
				req.ID = other.(string)
			}
			if req.Op != "try" {
				return f.send(ctx, req)
			}
			req.Op = op
			a, err := f.send(ctx, req)
			if errors.Is(err, backend.ErrOutcomeUnknown) && ctx.Err() == nil {
				again := req
				again.ID = backend.NewID().Hex()
				names.Store(req.ID, again.ID)
				return f.send(ctx, again)
			}
			return a, err
		}
	}
}

// Mistakes that only a network shows, each in the client of a server that is right.
func TestMutantsBehindANetwork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules, says string
		change      func(f *farBackend, m *lockerMutant)
	}{
		"a try that failed is sent again as if it were another":                                    {"CutIsNoRefusal", "expected a lease, or an error that says that the outcome is unknown", sentAgain("try")},
		"a try that failed is sent again, while the server has not seen the end of its connection": {"CutIsNoRefusal", "expected a lease, or an error that says that the outcome is unknown", sentAgain("try here")},
		"a cut is taken for a server that was not reached": {"CutIsNoRefusal", "such a call has changed nothing", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				if req.Op == "try" && errors.Is(err, backend.ErrOutcomeUnknown) && ctx.Err() == nil {
					return a, backend.ErrUnavailable
				}
				return a, err
			}
		}},
		"calls end with the answer, though it says that they end with their contexts": {"SilentCallsEnd", "had not returned", func(f *farBackend, m *lockerMutant) {
			f.obeys = true
			_ = m.Client.Close()
			m.Client, _ = lock.New(f, &lock.Options{TTL: farTTL})
			m.try, m.acquire, m.close = m.Client.TryAcquire, m.Client.Acquire, m.Client.Close
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				return f.send(context.WithoutCancel(ctx), req)
			}
		}},
		"asks the server for the deadline": {"SilentLeaseIsRead", "expected it to wait for nothing", func(f *farBackend, m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.deadline = func() (time.Time, bool) {
					_, _ = f.send(context.Background(), farRequest{Op: "renew", Key: l.Key(), ID: backend.NewID().Hex(), TTL: l.set.TTL})
					return l.Lease.Deadline()
				}
			}
		}},
		"Renew ends with the answer": {"SilentCallsEnd", "Renew had not returned", func(_ *farBackend, m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.renew = func(context.Context) error { return l.Lease.Renew(context.Background()) }
			}
		}},
		"Release ends when the server confirms it": {"SilentCallsEnd", "Release had not returned", func(_ *farBackend, m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					for {
						if err := l.Lease.Release(ctx); !errors.Is(err, lock.ErrOutcomeUnknown) {
							return err
						}
					}
				}
			}
		}},
		"Close ends when the server answers": {"SilentCallsEnd", "Close had not returned", func(f *farBackend, m *lockerMutant) {
			m.close = func() error {
				_, _ = f.send(context.Background(), farRequest{Op: "release", Key: "any", ID: backend.NewID().Hex()})
				return m.Client.Close()
			}
		}},
		"the server is asked for the guarantees": {"GuaranteesAreStable", "expected it to ask no server", func(f *farBackend, _ *lockerMutant) { f.greets = true }},
		"a server that was not reached may have done it": {"RefusedIsNotUnknown", "again and again", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				if errors.Is(err, backend.ErrUnavailable) {
					err = backend.ErrOutcomeUnknown
				}
				return a, err
			}
		}},
		"the key gets its TTL in a second request": {"CutWhileAcquiring", "the key was still refused", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				switch {
				case req.Op == "release" && req.Token == 0: // what failed is not cleaned up
					return farAnswer{}, backend.ErrNotHeld
				case req.Op != "try":
					return f.send(ctx, req)
				}
				first := req
				first.TTL = time.Hour
				a, err := f.send(ctx, first)
				if err == nil {
					// The server never shortens a hold.
					_, err = f.send(ctx, farRequest{Op: "release", Key: req.Key, ID: req.ID})
				}
				if err == nil {
					a, err = f.send(ctx, req)
				}
				return a, err
			}
		}},
		"a grant that comes late is renewed, and nobody has it": {"SilenceWhileAcquiring", "a request that arrives late keeps the key for one TTL at most", func(_ *farBackend, m *lockerMutant) {
			m.try = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				type answer struct {
					lease lock.Lease
					err   error
				}
				got, told := make(chan answer, 1), make(chan struct{})
				var once sync.Once
				room := make(chan struct{}, 100) // each has a connection
				ask := func() {
					defer func() { <-room }()
					l, err := m.Client.TryAcquire(context.WithoutCancel(ctx), key, opts...)
					again := errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrOutcomeUnknown)
					// Later it may be held by one of its own requests.
					if !again && (ctx.Err() == nil || !errors.Is(err, lock.ErrHeld)) {
						once.Do(func() {
							got <- answer{l, err}
							close(told)
						})
					}
				}
				go func() { // one is sent soon after the network has healed
					for {
						select {
						case room <- struct{}{}:
							go ask()
						default:
						}
						select {
						case <-told:
							return
						case <-time.After(50 * time.Millisecond):
						}
					}
				}()
				select {
				case a := <-got:
					return a.lease, a.err
				case <-ctx.Done():
					return nil, errors.Join(lock.ErrOutcomeUnknown, ctx.Err())
				}
			}
		}},
		"a try without an answer was granted": {"CutWhileAcquiring", "was granted; expected a refusal, because its holder was granted it", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				if req.Op == "try" && errors.Is(err, backend.ErrOutcomeUnknown) {
					return farAnswer{Holds: 1}, nil
				}
				return a, err
			}
		}},
		"no error of a release is looked at": {"CutWhileReleasing", "Release, whose connection was cut, returned ok", func(_ *farBackend, m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error { _ = l.Lease.Release(ctx); return nil }
			}
		}},
		"a release without an answer says that nothing is held": {"CutWhileReleasing", "expected a lease, or an error of Release that says that its outcome is unknown", func(_ *farBackend, m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				l.release = func(ctx context.Context) error {
					err := l.Lease.Release(ctx)
					if errors.Is(err, lock.ErrOutcomeUnknown) {
						return lock.ErrNotHeld
					}
					return err
				}
			}
		}},
		"a release that failed is repeated by key": {"CutWhileReleasing", "repeats of the earlier release must not free it", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				if req.Op == "release" && errors.Is(err, backend.ErrOutcomeUnknown) {
					go func() {
						time.Sleep(farTTL / 10)
						_, _ = f.send(context.WithoutCancel(ctx), farRequest{Op: "delete", Key: req.Key, ID: req.ID})
					}()
				}
				return a, err
			}
		}},
		"an owner's entry without an answer was granted": {"ReentrantThroughCut", "has released the first of its two leases", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				if req.Op == "try" && req.Owner != "" && errors.Is(err, backend.ErrOutcomeUnknown) {
					return farAnswer{Holds: 2}, nil
				}
				return a, err
			}
		}},
		"an owner's entry that failed is sent again as if it were another": {"ReentrantThroughCut", "both leases of the owner", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				if req.Op == "try" && req.Owner != "" && errors.Is(err, backend.ErrOutcomeUnknown) {
					again := req
					again.ID = backend.NewID().Hex()
					for range 100 { // the network may be down for a moment
						if _, err := f.send(ctx, again); err == nil {
							return f.send(ctx, req)
						}
						time.Sleep(time.Millisecond)
					}
				}
				return a, err
			}
		}},
		"what is left of an owner's entry is taken back by key": {"ReentrantThroughCut", "has only failed to enter it again", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				if req.Op == "release" && req.Token == 0 {
					req.Op = "delete"
				}
				return f.send(ctx, req)
			}
		}},
		"dials once": {"CutIsKeptOrTold", "TryAcquire and Release of a free key still fail", func(f *farBackend, _ *lockerMutant) {
			var broken atomic.Bool
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				if broken.Load() {
					return farAnswer{}, backend.ErrUnavailable
				}
				a, err := f.send(ctx, req)
				if errors.Is(err, backend.ErrOutcomeUnknown) && ctx.Err() == nil { // the network, and not the caller
					broken.Store(true)
				}
				return a, err
			}
		}},
		"begins anew with a new connection, and tells no lease": {"CutIsKeptOrTold", "whose connections were cut, had not ended", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				// A slow machine may have left it more connections, which were cut, too.
				for unknown := err; req.Op == "renew" && errors.Is(unknown, backend.ErrOutcomeUnknown); {
					_, unknown = f.send(context.WithoutCancel(ctx), farRequest{Op: "release", Key: req.Key, ID: req.ID})
				}
				if req.Op == "renew" && errors.Is(err, backend.ErrNotHeld) {
					return farAnswer{}, backend.ErrUnavailable
				}
				return a, err
			}
		}},
		"a renewal that takes long is a loss": {"ShortSilenceIsNoLoss", "its network was silent for a quarter of its TTL", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				if req.Op != "renew" {
					return f.send(ctx, req)
				}
				ctx, cancel := context.WithTimeout(ctx, farTTL/20)
				defer cancel()
				a, err := f.send(ctx, req)
				if ctx.Err() != nil {
					err = backend.ErrNotHeld
				}
				return a, err
			}
		}},
		"no holder is told": {"LostWhenUnreachable", "the context of the holder, whose network was", func(_ *farBackend, m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) { l.ctx = context.Background() }
		}},
		"renews whatever its leases say": {"LostWhenUnreachable", "its holder does not hear from the server", func(f *farBackend, m *lockerMutant) {
			var heard sync.Map // when the server has answered for a hold
			closed := make(chan struct{})
			m.close = func() error { close(closed); return m.Client.Close() }
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				if last, ok := heard.Load(req.ID); ok && req.Op == "release" && time.Since(last.(time.Time)) > req.TTL/2 {
					return farAnswer{}, backend.ErrNotHeld // it is lost
				}
				sent := time.Now()
				a, err := f.send(ctx, req)
				if err == nil {
					heard.Store(req.ID, sent)
				}
				if req.Op == "try" && err == nil {
					req.Op = "renew"
					go func() {
						for {
							select {
							case <-closed:
								return
							case <-time.After(farTTL / 8):
								go func() {
									ctx, cancel := context.WithTimeout(context.Background(), time.Second)
									defer cancel()
									_, _ = f.send(ctx, req)
								}()
							}
						}
					}()
				}
				return a, err
			}
		}},
		"what was not answered was granted": {"ExclusiveThroughFaults", "two leases of one key were valid at the same time", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				a, err := f.send(ctx, req)
				if req.Op == "try" && errors.Is(err, backend.ErrOutcomeUnknown) {
					return farAnswer{Holds: 1}, nil
				}
				return a, err
			}
		}},
		"deletes by key": {"LostWhenUnreachable", "what the earlier one has sent must not free it", func(f *farBackend, _ *lockerMutant) {
			f.ask = func(ctx context.Context, req farRequest) (farAnswer, error) {
				if req.Op == "release" {
					req.Op = "delete"
				}
				return f.send(ctx, req)
			}
		}},
		"waits for a signal, whatever becomes of its connection": {"WaiterSurvivesCut", "had neither the key nor an error", func(f *farBackend, m *lockerMutant) {
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				for {
					l, err := m.Client.TryAcquire(ctx, key, opts...)
					if !errors.Is(err, lock.ErrHeld) {
						return l, err
					}
					if _, err := f.send(ctx, farRequest{Op: "wait", Key: key, ID: backend.NewID().Hex()}); err != nil {
						<-ctx.Done()
						return nil, errors.Join(lock.ErrHeld, ctx.Err())
					}
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failsThroughNetwork(t, farLock(t, c.change), c.rules, c.says)
		})
	}
}

// A Locker that does not go where it is sent has not been tried.
func TestProxyIsUsed(t *testing.T) {
	t.Parallel()
	cfg := farLock(t, nil)
	open, server := cfg.Proxy.Open, cfg.Proxy.Server
	cfg.Proxy.Open = func(ctx context.Context, _ string) (lock.Locker, error) { return open(ctx, server) }
	failsThroughNetwork(t, cfg, "CutIsNoRefusal", "without a connection to 127.0.0.1:")
	cfg.Proxy.Open = func(context.Context, string) (lock.Locker, error) { return nil, nil }
	cfg.Open = func(ctx context.Context) (lock.Locker, error) { return open(ctx, server) }
	failsThroughNetwork(t, cfg, "CutIsNoRefusal", "Config.Proxy.Open returned neither a Locker nor an error")
	cfg.Proxy.Open = nil
	_, err := conformance.Check(t.Context(), cfg)
	require.ErrorContains(t, err, "Config.Proxy needs Server")
}
