package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// A store is a kind of server, with the ways to lock in it.
type store struct {
	name, title string
	about       string                               // how the server is set up
	start       func(h *servertest.Program) *servers // nil: nothing to start
	parallel    int                                  // goroutines of the scenario parallel
	heldFor     time.Duration                        // under contention
	together    bool                                 // one client has all goroutines that compete
	contenders  []contender
}

// servers are those of a store, for as long as it is measured.
type servers struct {
	version string
	addrs   []string
	url     string // of ours
	dsn     string // of MySQL
	// commands is how many the contender has sent so far; nil, nothing counts them.
	commands func(ctx context.Context, c *contender) (float64, error)
}

// kind says what a contender stands for.
type kind int

const (
	bare kind = iota // commands that a user would send
	peer             // a library
	own              // this one
)

// A contender is one way to lock.
type contender struct {
	name string
	kind kind
	how  string // how it is called, for the page
	// against is the bare contender that it is compared with; empty, the store's first.
	against string
	// plainSet: it sends SET by itself. Of others, SET is counted with the script that calls it.
	plainSet bool
	// most is how many waiters or leases it can be asked for, by scenario; none, as many
	// as are tried.
	most map[string]int
	// not has the scenarios that it takes no part in, and why.
	not  map[string]string
	open func(s *servers, p purpose) (client, error)
	aims []aim
}

// A purpose says what a client is opened for.
type purpose struct {
	goroutines int // that use it
	ttl        time.Duration
	renewed    bool // holds last for longer than a TTL
	// kept is told of each lease of ours; nil, nobody asks.
	kept func(key string, l lock.Lease)
}

// A client has connections of its own, as a program has.
type client struct {
	acquire func(ctx context.Context, key string) (release func() error, err error)
	close   func()
}

// An aim is for a figure of a contender of ours, as a ratio to that of another.
type aim struct {
	scenario string
	size     int    // of a scenario with sizes
	figure   figure // the rate, unless it is said
	// against is a contender, or bestPeer; empty, the figure itself is meant.
	against string
	// than is another size of the same contender that it is compared with.
	than int
	// more: the difference is meant, and not the ratio.
	more bool
	goal goal
}

// bestPeer is the fastest of the peers, in each round.
const bestPeer = "the best peer"

func atLeast(scenario string, ratio float64, against string) aim {
	return aim{scenario: scenario, against: against, goal: goal{atLeast: ratio}}
}

// asWith: the figure at one size is to be that at another.
func asWith(scenario string, figure figure, size, than int, g goal) aim {
	return aim{scenario: scenario, figure: figure, size: size, than: than, goal: g}
}

// stores are all that can be measured.
var stores = []*store{redisStore, redlockStore, etcdStore, zookeeperStore, mysqlStore, memoryStore}

// ours is opened by URL.
func ours(parameters string) func(*servers, purpose) (client, error) {
	return func(s *servers, p purpose) (client, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		l, err := lock.Open(ctx, s.url+parameters, &lock.Options{TTL: p.ttl})
		return clientOf(l, p), err
	}
}

// withoutHandOver is ours, whose releases and next acquisitions are requests of their own.
func withoutHandOver(s *servers, p purpose) (client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	b, err := backend.DefaultMux.Open(ctx, s.url, backend.OpenConfig{TTL: p.ttl})
	if err != nil {
		return client{}, err
	}
	l, err := lock.New(handsNothingOver{b}, &lock.Options{TTL: p.ttl})
	return clientOf(l, p), err
}

type handsNothingOver struct{ backend.Backend }

func (b handsNothingOver) Unwrap() backend.Backend { return b.Backend }

func (handsNothingOver) HandOver(context.Context, backend.Hold, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, lock.ErrUnsupported
}

func clientOf(l *lock.Client, p purpose) client {
	return client{
		acquire: func(ctx context.Context, key string) (func() error, error) {
			lease, err := l.Acquire(ctx, key)
			if err != nil {
				return nil, err
			}
			if p.kept != nil {
				p.kept(key, lease)
			}
			return func() error { return lease.Release(ctx) }, nil
		},
		close: func() { _ = l.Close() },
	}
}

// endless opens a client whose contexts have no end.
func endless(open func(*servers, purpose) (client, error)) func(*servers, purpose) (client, error) {
	return func(s *servers, p purpose) (client, error) {
		c, err := open(s, p)
		acquire := c.acquire
		c.acquire = func(_ context.Context, key string) (func() error, error) { return acquire(context.Background(), key) }
		return c, err
	}
}

// random is what tells the holds of a bare contender apart.
func random() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// retry is how long the bare contenders wait before they ask again.
const retry = time.Millisecond

// pause waits before the next attempt.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(retry):
		return nil
	}
}

// refreshing has a goroutine refresh the hold every third of the TTL until it is released,
// as programs do whose library leaves that to them.
func refreshing(ttl time.Duration, refresh, release func() error) func() error {
	end := make(chan struct{})
	go func() {
		for tick := time.NewTicker(ttl / 3); ; {
			select {
			case <-tick.C:
				_ = refresh()
			case <-end:
				tick.Stop()
				return
			}
		}
	}()
	return func() error { close(end); return release() }
}
