//go:build !linux

package servertest

func inMemory() string { return "" }
