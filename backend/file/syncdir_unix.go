//go:build unix

package filelock

import "os"

// syncDir writes the names in a directory to disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
