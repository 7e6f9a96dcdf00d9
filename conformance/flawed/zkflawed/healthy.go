package zkflawed

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

var healthy = Lock{
	ID: "healthy", Title: "sequential ephemeral nodes, looked for among the children, renewed by a write",
	File: "healthy.go",
	On:   onZooKeeper(func(r *recipe) backend.Backend { return r }),
}

// recipe is a plain lock on one ZooKeeper session, and the ground on which broken ones
// are built.
//
//	acquire   create KEY/ID-SEQUENCE, ephemeral; held if no child has a smaller sequence
//	renew     setData of the node
//	release   delete the node
//
// A hold that is not renewed is deleted by its client after the TTL.
type recipe struct {
	conn    *zk.Conn
	events  <-chan zk.Event
	timeout time.Duration

	mu    sync.Mutex
	holds map[backend.ID]*hold
}

type hold struct {
	path  string
	token uint64

	mu     sync.Mutex // held from the stop of the timer to its start: renewals may meet
	expiry *time.Timer
}

// extend puts the end of the hold off, and reports whether it had not come yet.
func (h *hold) extend(ttl time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.expiry.Stop() {
		return false
	}
	h.expiry.Reset(ttl)
	return true
}

func connect(addr string, timeout time.Duration) (*recipe, error) {
	conn, events, err := zk.Connect([]string{addr}, timeout, zk.WithLogger(silence{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	r := &recipe{conn: conn, events: events, timeout: timeout, holds: map[backend.ID]*hold{}}
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return r, nil
			}
		case <-limit.C:
			_ = r.Close()
			return nil, fmt.Errorf("%w: no session", backend.ErrUnavailable)
		}
	}
}

type silence struct{}

func (silence) Printf(string, ...any) {}

func now() backend.Instant { return backend.SystemClock().Now() }

const root = "/flawed"

func dirOf(key string) string { return root + "/" + url.QueryEscape("k"+key) }

// nameOf is the name of the acquisition's node without the sequence.
func nameOf(id backend.ID) string { return fmt.Sprintf("%x-", sha256.Sum256([]byte(id.Hex())))[48:] }

func sequence(name string) int64 {
	n, err := strconv.ParseInt(name[len(nameOf(backend.ID{})):], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func (r *recipe) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if err := ctx.Err(); err != nil {
		return backend.Grant{}, err
	}
	if h := r.find(req.ID); h != nil {
		v, err := r.Renew(ctx, backend.HoldOf(req))
		return backend.Grant{Token: h.token, Holds: 1, Validity: v}, err
	}
	sent := now()
	path, err := r.create(req)
	if err != nil {
		return backend.Grant{}, err
	}
	names, _, err := r.conn.Children(dirOf(req.Key))
	if err != nil {
		return backend.Grant{}, err
	}
	own, found := path[len(dirOf(req.Key))+1:], false
	for _, name := range names {
		found = found || name == own
		if sequence(name) < sequence(own) {
			return backend.Grant{}, r.refuse(req, path)
		}
	}
	if !found {
		return backend.Grant{}, fmt.Errorf("%w: the node is gone", backend.ErrUnavailable)
	}
	return r.granted(req, path, sent)
}

// create creates the node of the request, and the parents when they are missing.
func (r *recipe) create(req backend.Request) (string, error) {
	dir := dirOf(req.Key)
	for {
		path, err := r.conn.Create(dir+"/"+nameOf(req.ID), nil, zk.FlagEphemeralSequential, zk.WorldACL(zk.PermAll))
		if !errors.Is(err, zk.ErrNoNode) {
			return path, err
		}
		for _, parent := range []string{root, dir} {
			if _, err := r.conn.Create(parent, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return "", err
			}
		}
	}
}

func (r *recipe) refuse(req backend.Request, path string) error {
	if err := r.conn.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	return &backend.HeldError{Key: req.Key}
}

// granted records the hold. Its token is the transaction that created the node.
func (r *recipe) granted(req backend.Request, path string, sent backend.Instant) (backend.Grant, error) {
	found, stat, err := r.conn.Exists(path)
	if err == nil && (!found || stat.EphemeralOwner != r.conn.SessionID()) {
		err = backend.ErrUnavailable
	}
	if err != nil {
		return backend.Grant{}, err
	}
	h := &hold{path: path, token: uint64(stat.Czxid)}
	h.expiry = time.AfterFunc(req.TTL, func() { _ = r.Release(context.Background(), backend.HoldOf(req)) })
	r.mu.Lock()
	r.holds[req.ID] = h
	r.mu.Unlock()
	return backend.Grant{Token: h.token, Holds: 1, Validity: validity(sent, req.TTL)}, nil
}

func validity(sent backend.Instant, ttl time.Duration) backend.Validity {
	return backend.Validity{Sent: sent, For: 2 * ttl / 3}
}

func (r *recipe) find(id backend.ID) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds[id]
}

func (r *recipe) Renew(ctx context.Context, of backend.Hold) (backend.Validity, error) {
	if err := ctx.Err(); err != nil {
		return backend.Validity{}, err
	}
	h := r.find(of.ID)
	if h == nil {
		return backend.Validity{}, backend.ErrNotHeld
	}
	sent := now()
	if _, err := r.conn.Set(h.path, nil, -1); errors.Is(err, zk.ErrNoNode) {
		return backend.Validity{}, backend.ErrTakenOver
	} else if err != nil {
		return backend.Validity{}, err
	}
	if !h.extend(of.TTL) {
		return backend.Validity{}, backend.ErrExpired
	}
	return validity(sent, of.TTL), nil
}

func (r *recipe) Release(ctx context.Context, of backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	h := r.holds[of.ID]
	if h == nil || !strings.HasPrefix(h.path, dirOf(of.Key)+"/") {
		r.mu.Unlock()
		return backend.ErrNotHeld
	}
	delete(r.holds, of.ID)
	r.mu.Unlock()
	h.expiry.Stop()
	err := r.conn.Delete(h.path, -1)
	if errors.Is(err, zk.ErrNoNode) {
		return backend.ErrNotHeld
	}
	return err
}

func (r *recipe) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name: "zookeeper recipe", Reach: backend.ReachNetwork,
		Assumptions: []string{"It is part of a test."},
		Expiry:      backend.ClockServerSteady,
		MinTTL:      r.timeout, MaxTTL: r.timeout, TTLGrain: time.Millisecond, TakeoverLag: r.timeout / 2,
		EndsWithSession: true,
		Token:           backend.TokenRevision,
		Reentrancy:      backend.ReentrancyClient,
		Waiting:         backend.WaitPoll,
		ManualRenewal:   true, WithoutRenewal: true, LossSignal: true, Deadline: true,
	}
}

func (r *recipe) Close() error {
	r.mu.Lock()
	for _, h := range r.holds {
		h.expiry.Stop()
	}
	r.mu.Unlock()
	r.conn.Close()
	for range r.events {
	}
	return nil
}
