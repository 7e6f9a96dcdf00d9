//go:build unix

package filelock_test

import (
	"context"
	"testing"

	"github.com/mortiselock/lock/backend"
	filelock "github.com/mortiselock/lock/backend/file"
	"github.com/mortiselock/lock/conformance"
)

func BenchmarkLocker(b *testing.B) {
	dir := b.TempDir()
	conformance.Bench(b, conformance.Config{OpenBackend: func(ctx context.Context) (backend.Backend, error) {
		return filelock.NewBackend(ctx, dir, nil)
	}})
}
