//go:build !linux

package filelock

import (
	"errors"
	"os"
)

const (
	knowsWaiters = false
	noFollow     = 0
)

func shareByte(*os.File, int64) error           { return errors.ErrUnsupported }
func freeByte(*os.File, int64) error            { return errors.ErrUnsupported }
func sharedByOthers(*os.File, int64, int64) int { return -1 }
func isLinked(*os.File) bool                    { return true }

func syncData(f *os.File) error { return f.Sync() }
