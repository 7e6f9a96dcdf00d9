//go:build !linux

package filelock

import "os"

func syncData(f *os.File) error { return f.Sync() }
