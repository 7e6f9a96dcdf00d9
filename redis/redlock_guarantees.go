package redislock

import (
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
)

// redlockGuarantees are those of a set of nodes. appendOnly: every node writes an
// append-only file.
func redlockGuarantees(nodes int, tokens bool, restartDelay time.Duration, appendOnly bool) backend.Guarantees {
	g := guarantees(appendOnly)
	g.Name = "redlock"
	if longest := restartDelay.Truncate(g.TTLGrain); longest < g.MaxTTL {
		g.MaxTTL = longest
		g.LongerTTL = "raise restart_delay (RestartDelay) in every Locker on these nodes"
	}
	g.Assumptions = []string{
		fmt.Sprintf("At least %d of the %d Redis servers keep the record while it is held; they are independent, every Locker is given all of them, and nobody else writes under the prefix.", nodes/2+1, nodes),
		fmt.Sprintf("A server that restarts without its newest data (no append-only file, or one that is not written with appendfsync always before its machine loses power) takes no part for as long as the longest TTL: the library sees to it for %s, the restart delay, which should be the same for every Locker and is the longest TTL that one accepts, or for the longest that the nodes knew when the Locker was opened, when the data or the run of the server is new, and the operator where a power failure took the end of an append-only file.", restartDelay),
		"The wall clocks of so many servers that they and the servers that did not vote form a majority are not set forward while a key is held.",
		"The rates of the clocks of the servers and of the holder differ by less than one percent.",
	}
	g.Expiry = backend.ClockMajority
	g.Reentrancy = backend.ReentrancyClient
	g.Waiting = backend.WaitPoll
	g.GuardedWrite = false // no write is atomic on a majority
	g.Token = backend.TokenNone
	g.TokenSurvives = nil
	if tokens {
		g.Token = backend.TokenQuorum
		g.TokenSurvives = []backend.Event{backend.EventClientCrash, backend.EventRecordRemoved}
		if appendOnly {
			g.TokenSurvives = append(g.TokenSurvives, backend.EventRestart)
		}
		g.Assumptions = append(g.Assumptions,
			"Tokens keep rising, whatever the clocks do, as long as a majority of the servers keeps the tokens that it accepted, for max(24 h, 10 TTL) after the last use of the key; after that, as long as the servers' clocks have not been set back behind the last token.")
	}
	return g
}
