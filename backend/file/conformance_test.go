//go:build unix

package filelock_test

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	filelock "github.com/mortiselock/lock/backend/file"
	"github.com/mortiselock/lock/conformance"
)

// TestConformance runs the whole suite. Each client has open file descriptions of
// its own, as if it were another process.
func TestConformance(t *testing.T) {
	dir := t.TempDir()
	conformance.Run(t, conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return filelock.NewBackend(ctx, dir, nil)
		},
		TTL:    time.Second,
		Budget: 20 * time.Second,
	})
}
