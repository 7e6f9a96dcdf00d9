//go:build unix

package filelock

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
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
		Untouched: func(context.Context) (conformance.Store, error) {
			other, err := os.MkdirTemp(dir, "untouched-")
			locks := filepath.Join(other, "locks")
			return conformance.Store{
				Open:     func(ctx context.Context) (backend.Backend, error) { return NewBackend(ctx, locks, nil) },
				Contents: func(context.Context) (string, error) { return listing(other) },
			}, err
		},
		Child:  dir,
		TTL:    time.Second,
		Budget: servertest.Budget(),
	}
}

// listing names everything below a directory, with what tells whether it was changed.
func listing(dir string) (text string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err == nil {
			text += path + " " + info.Mode().String() + " " + info.ModTime().String() + "\n"
		}
		return err
	})
	return text, err
}

func BenchmarkLocker(b *testing.B) {
	dir := b.TempDir()
	conformance.Bench(b, conformance.Config{OpenBackend: func(ctx context.Context) (backend.Backend, error) {
		return NewBackend(ctx, dir, nil)
	}})
}
