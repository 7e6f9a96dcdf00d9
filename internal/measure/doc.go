// Package measure measures ways to take a lock, for the command bench and for
// conformance.Bench. It compares them in one run and in turns: single numbers of a
// shared machine say little, ratios of neighbours say more.
//
//	Together     many goroutines, free keys: how long all their pairs of take and give back take
//	Hoard        many keys held at once: what that costs in memory and goroutines
//	SideBySide   one goroutine, a free key: how many pairs of take and give back a second
//	PairByPair   the same for sides that write to a disk: the sides alternate with
//	             every pair, and the median pair counts
//	Contest      many goroutines, one key: for what part of the time it is in use,
//	             how long the waits are, what it costs the server
//	Print        a table with ratios, and with what was aimed at beside them
//
// A comparison takes the median of several rounds. In each round every side has
// its turn, SideBySide many short ones, so that what else the machine does meets all of
// them; a round before the first warms up and is not counted.
package measure
