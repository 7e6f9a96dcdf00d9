//go:build !unix

package filelock

// syncDir does nothing: this system cannot sync a directory, and its file
// systems keep a journal of names.
func syncDir(string) error { return nil }
