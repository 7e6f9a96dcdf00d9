package mysqllock

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// operators is what both forms offer to those who look at holds, end them, and clean up.
type operators interface {
	backend.Inspector
	backend.ForceReleaser
	backend.Revoker
	backend.Lister
	backend.Forgetter
	backend.Cleaner
}

// look is a backend that was opened for that alone ([backend.OpenConfig.LookOnly]): where
// there is no table, nobody holds anything.
type look struct {
	backend.Backend
	operators
}

func (l look) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := l.operators.Inspect(ctx, key)
	return rec, orNotHeld(key, err)
}

func (l look) ForceRelease(ctx context.Context, key string, token uint64) error {
	return orNotHeld(key, l.operators.ForceRelease(ctx, key, token))
}

func (l look) Revoke(ctx context.Context, key string, token uint64) error {
	return orNotHeld(key, l.operators.Revoke(ctx, key, token))
}

func (l look) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	return orNothing(l.operators.List(ctx, prefix, visit))
}

func (l look) Forget(ctx context.Context, prefix string) error {
	return orNothing(l.operators.Forget(ctx, prefix))
}

func (l look) Cleanup(ctx context.Context, olderThan time.Duration, dryRun bool) (int, error) {
	n, err := l.operators.Cleanup(ctx, olderThan, dryRun)
	return n, orNothing(err)
}

// orNothing is the error, or nil if it says that there is no table.
func orNothing(err error) error {
	if wire.CodeOf(err) == wire.CodeNoSuchTable {
		return nil
	}
	return err
}

// orNotHeld is the error, or ErrNotHeld if it says that there is no table.
func orNotHeld(key string, err error) error {
	if wire.CodeOf(err) == wire.CodeNoSuchTable {
		return wire.NotHeld(key)
	}
	return err
}
