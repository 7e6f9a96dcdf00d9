// Package memlock keeps locks in the memory of the process. It is the reference
// for people who write backends, and the test double for people who use locks:
// its clock can be virtual, and faults can be put before it (package faultlock).
//
// It has two personalities, so that both halves of the backend contract are
// proven without a server. A record with expiry, as Redis or a MySQL table keep
// it, is the default (mem:). A session with a queue, as etcd or ZooKeeper keep
// it, is [Options.Queue] (mem:?mode=queue): waiting takes a place in a queue on
// the "server", first come first served across Lockers, and the holds of an
// explicit owner are counted in the Locker.
package memlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
)

// Options are the settings of a memory backend. The zero value of each field, and
// a nil pointer, mean the default.
type Options struct {
	// Lock are the settings of the Locker.
	Lock lock.Options

	// Store is what the Lockers share. Two Lockers exclude each other if they
	// have the same store. Default: one store for the whole process and mode.
	Store *Store

	// Queue chooses the personality with a session and a queue. It must be the
	// same for all Lockers of a store.
	Queue bool
}

// New returns a [lock.Client] in memory.
func New(ctx context.Context, opts *Options) (*lock.Client, error) {
	b, err := NewBackend(ctx, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
}

// NewBackend returns the backend alone. ctx is only looked at, since nothing is
// waited for.
func NewBackend(ctx context.Context, opts *Options) (backend.Backend, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o := construct.Options(opts)
	store := o.Store
	if store == nil {
		store = namedStore("", o.Queue)
	}
	if o.Queue {
		return newQueueBackend(store)
	}
	return newRecordBackend(store)
}

func init() {
	backend.DefaultMux.Register(Scheme, Opener)
	backend.DefaultMux.Declare("mem:", (&recordBackend{}).Guarantees())
	backend.DefaultMux.Declare("mem:?mode=queue", (&queueBackend{}).Guarantees())
}

// Scheme is the URL scheme of this package.
const Scheme = "mem"

// Opener opens mem:NAME?mode=record|queue. URLs with the same name and mode share
// one store within the process; the name may be empty.
func Opener(_ context.Context, u *backend.URL, _ backend.OpenConfig) (backend.Backend, error) {
	mode := u.Query.OneOf("mode", "record", "queue")
	if err := u.Query.Done(); err != nil {
		return nil, err
	}
	if len(u.Hosts) > 0 || u.User != "" {
		return nil, fmt.Errorf("%w: a mem URL has no host; it looks like mem: or mem:name?mode=queue", backend.ErrInvalid)
	}
	store := namedStore(u.Path, mode == "queue")
	if mode == "queue" {
		return newQueueBackend(store)
	}
	return newRecordBackend(store)
}

var named struct {
	mu sync.Mutex
	m  map[storeName]*Store
}

type storeName struct {
	name  string
	queue bool
}

func namedStore(name string, queue bool) *Store {
	named.mu.Lock()
	defer named.mu.Unlock()
	k := storeName{name, queue}
	s := named.m[k]
	if s == nil {
		s = NewStore(nil)
		if named.m == nil {
			named.m = map[storeName]*Store{}
		}
		named.m[k] = s
	}
	return s
}

// guarantees are what both personalities promise.
func guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name:           "memory",
		Reach:          backend.ReachProcess,
		Assumptions:    []string{"Everybody who must be excluded is a goroutine of this process and uses this store."},
		Expiry:         backend.ClockProcess,
		MinTTL:         10 * time.Millisecond,
		MaxTTL:         10 * 365 * 24 * time.Hour,
		TTLGrain:       1,
		Token:          backend.TokenCounter,
		TokenSurvives:  []backend.Fault{backend.FaultRecordRemoved},
		Reentrancy:     backend.ReentrancyServer,
		Waiting:        backend.WaitPush,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
		HolderDetails:  true,
	}
}
