package filelock

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mortiselock/lock/backend"
)

// List reads every state file of the directory, and visits the keys that are
// held. It makes no file and no directory.
func (b *files) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	dirs, err := os.ReadDir(filepath.Join(b.dir, holdDir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.untouched()
	case err != nil:
		return failed("listing the records", err)
	}
	for _, dir := range dirs {
		path := filepath.Join(b.dir, holdDir, dir.Name())
		files, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed("listing the records", err)
		}
		for _, file := range files {
			if err := ctx.Err(); err != nil {
				return err
			}
			key, ok := keyIn(filepath.Join(path, file.Name()))
			if !ok || !strings.HasPrefix(key, prefix) || b.placeOf(key).name != file.Name() {
				continue
			}
			rec, err := b.Inspect(ctx, key)
			switch {
			case errors.Is(err, backend.ErrNotHeld):
				continue
			case err != nil:
				return err
			case !visit(rec):
				return nil
			}
		}
	}
	return nil
}

// keyIn is the key that a state file says it is about. Whether that is true is for
// the caller to find out.
func keyIn(path string) (string, bool) {
	data, err := readFile(path)
	if err != nil {
		return "", false // foreign, or gone
	}
	var r struct {
		Key string `json:"key"`
	}
	return r.Key, json.Unmarshal(data, &r) == nil && r.Key != ""
}
