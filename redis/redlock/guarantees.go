package redlock

import (
	"fmt"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// guarantees are those of a set of nodes. appendOnly: every node writes an
// append-only file. tokenMemory is 0 for the default.
func guarantees(nodes int, tokens bool, restartDelay, tokenMemory time.Duration, appendOnly bool) backend.Guarantees {
	g := backend.Guarantees{
		Name:  "redlock",
		Reach: backend.ReachNetwork,
		Assumptions: []string{
			fmt.Sprintf("At least %d of the %d servers, which fail independently, keep the record while it is held.", nodes/2+1, nodes),
			"Every Locker is given all of them.",
			"Nobody else writes under the prefix.",
			fmt.Sprintf("A server that restarts without its newest data takes no part for %s, the restart delay: the library sees to that.", restartDelay),
			"Every Locker has the same restart delay, or is opened after the one with the longest.",
			"When a power failure took the end of an append-only file (without appendfsync always), the operator keeps the server away for that long.",
			"While a key is held, wall clocks are not set forward on so many servers that, with the non-voters, they are a majority.",
			"The clock rates of server and holder differ by less than one percent.",
		},
		Expiry:         backend.ClockMajority,
		MinTTL:         wire.MinTTL,
		MaxTTL:         wire.MaxTTL,
		TTLGrain:       time.Millisecond,
		Token:          backend.TokenNone,
		Reentrancy:     backend.ReentrancyClient,
		Waiting:        backend.WaitPush,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
		HolderDetails:  true,
		GuardedWrite:   false, // no write is atomic on a majority
	}
	if appendOnly {
		g.HoldsSurvive = []backend.Fault{backend.FaultRestart}
	}
	if longest := restartDelay.Truncate(g.TTLGrain); longest < g.MaxTTL {
		g.MaxTTL = longest
		g.LongerTTL = "raise restart_delay (RestartDelay) in every Locker on these nodes"
	}
	if tokens {
		remembered := "max(24 h, 10 TTL)"
		if tokenMemory > 0 {
			remembered = tokenMemory.String()
		}
		g.Token = backend.TokenQuorum
		g.TokenSurvives = []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved}
		if appendOnly {
			g.TokenSurvives = append(g.TokenSurvives, backend.FaultRestart)
		}
		g.Assumptions = append(g.Assumptions,
			"Tokens rise, whatever the clocks do, as long as every server keeps the last one that it accepted.",
			fmt.Sprintf("A server may lose it, and forgets it %s after the last grant or renewal: then tokens also need clocks.", remembered),
			"In that case the servers' clocks differ by less than the restart delay, and are not set back.")
	}
	return g
}
