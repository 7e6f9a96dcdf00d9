// Package filelock keeps locks in files of one machine, for processes that share
// a directory and no server. Importing it registers the scheme file: with
// lock.Open.
//
//	locker, err := lock.Open(ctx, "file:/var/lib/app/locks", nil)
//
// A lock is a lease like on any other backend: it has a TTL, it is renewed, it
// ends by itself after kill -9, and it has a fencing token. A small state file
// per key is the record. An operating system lock (flock) on a guard file is
// held only for the length of one read-modify-write of that record, never for
// the length of a lease.
//
// Leases are measured on the machine's boot clock, which counts suspend and does
// not follow the wall clock. A reboot ends every lease.
package filelock

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
)

// Options are the settings of [New] and [NewBackend]. A nil pointer means the
// default of each.
type Options struct {
	// Lock are the settings of the Locker. Lock.Logger also receives the warnings
	// of the backend: state files that somebody else has damaged.
	Lock lock.Options
}

// New returns a [lock.Client] on the directory; an empty dir means [DefaultDir]. The first
// acquisition creates it, for this user only, where it is missing. What only looks
// changes nothing, and can be done by another user who may read the files, such as root.
//
// A directory that nobody can use (not a directory, on a network file system, writable
// by everybody) is refused with an error matching lock.ErrPermanent. One that this
// process cannot write to (no permission, read-only, used by another user) is refused
// in the same way by the first request that writes, a full disk with an error matching
// lock.ErrUnavailable. ctx bounds the opening only.
func New(ctx context.Context, dir string, opts *Options) (*lock.Client, error) {
	b, err := NewBackend(ctx, dir, opts)
	if err != nil {
		return nil, err
	}
	return lock.New(b, &construct.Options(opts).Lock)
}

// NewBackend is [New] for those who want the backend itself. It also implements
// backend.Watcher, backend.ReleaseTeller, backend.Inspector, backend.ForceReleaser,
// backend.Revoker, backend.Lister, backend.Cleaner, backend.FloorRaiser and backend.TokenTeller.
func NewBackend(ctx context.Context, dir string, opts *Options) (backend.Backend, error) {
	return newFiles(ctx, dir, construct.Options(opts).Lock.Logger)
}

// minTTL leaves room for a slow disk between the moment at which a lease begins
// and the moment at which its holder hears of it. maxTTL also bounds what a
// state file that somebody tampered with can block.
const (
	minTTL   = 100 * time.Millisecond
	maxTTL   = 365 * 24 * time.Hour
	ttlGrain = time.Millisecond
)

// maxGuardWait bounds how long one operation waits for a guard whose owner does
// not move. Operations inside a guard take a few file system calls.
const maxGuardWait = 5 * time.Second

// files is the backend.
type files struct {
	dir       string
	private   bool        // the directory is that of the user, whom nobody was told to share it with
	prepared  atomic.Bool // it can be written to
	missed    sync.Once   // that it does not exist was told
	log       *slog.Logger
	clock     backend.Clock
	boot      bootClock
	guardWait time.Duration
	seats     [shards]chan struct{}
	hub       hub
	waiters   waiters
}

func newFiles(ctx context.Context, dir string, logger *slog.Logger) (*files, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	logger = construct.Logger(logger)
	boot, err := openBootClock()
	if err != nil {
		return nil, err
	}
	private := dir == ""
	if dir, err = findDir(dir); err != nil {
		return nil, err
	}
	b := &files{dir: dir, private: private, log: logger, clock: backend.SystemClock(), boot: boot, guardWait: maxGuardWait}
	b.waiters.path, b.waiters.seat = filepath.Join(dir, waitersFile), nextSeat.Add(1)%waiterSeats
	for i := range b.seats {
		b.seats[i] = make(chan struct{}, 1)
	}
	return b, nil
}

// Guarantees says what files on one machine promise.
func (b *files) Guarantees() backend.Guarantees {
	return backend.Guarantees{
		Name:  "file",
		Reach: backend.ReachHost,
		Assumptions: append([]string{
			"All processes run on one machine, as the same user, and name the same directory.",
			"The directory is on a local file system that keeps what was written while the machine is up.",
			"Nobody else removes, replaces or edits files in the directory.",
		}, clockAssumptions...),
		Expiry:   expiryClock,
		MinTTL:   minTTL,
		MaxTTL:   maxTTL,
		TTLGrain: ttlGrain,
		Token:    backend.TokenCounter,
		TokenSurvives: []backend.Fault{
			backend.FaultClientCrash, backend.FaultRecordRemoved, backend.FaultRestart,
		},
		Reentrancy:     backend.ReentrancyServer,
		Waiting:        backend.WaitPush,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
		HolderDetails:  true,
	}
}

// Close ends the watches. It touches no file.
func (b *files) Close() error {
	b.waiters.close()
	return b.hub.close()
}
