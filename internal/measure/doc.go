// Package measure measures ways to take a lock, for the command bench and for
// conformance.Bench.
//
//	Together     goroutines with free keys: how many pairs of take and give back they make
//	Contest      many goroutines, one key: for what part of the time it is in use,
//	             how long the waits are, what it costs the server
//	Hoard        many keys held at once: what that costs in memory and goroutines
package measure
