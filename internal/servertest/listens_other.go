//go:build !linux

package servertest

// listens can't tell here who listens on a port.
func listens(int, string) error { return nil }
