package mysqllock

import (
	"context"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// operators is what both forms offer to those who look at holds and end them.
type operators interface {
	backend.Inspector
	backend.ForceReleaser
	backend.Revoker
	backend.Lister
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
	err := l.operators.List(ctx, prefix, visit)
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
