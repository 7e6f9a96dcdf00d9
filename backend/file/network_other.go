//go:build !linux && !darwin

package filelock

// localFileSystem accepts everything: network file systems are not recognised on
// this system.
func localFileSystem(string) error { return nil }
