//go:build unix

package filelock

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
)

// TestConformance runs the whole suite. Each client has open file descriptions of
// its own, as if it were another process; where it matters, it is one.
func TestConformance(t *testing.T) {
	cfg := conformanceOf(servertest.TempDir(t))
	cfg.Judge = linear.Judge(t)
	conformance.Run(t, cfg)
}

// conformanceOf is the suite's Config in the processes that it starts, too.
func conformanceOf(dir string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return NewBackend(ctx, dir, nil)
		},
		Child:  dir,
		TTL:    time.Second,
		Budget: 20 * time.Second,
	}
}
