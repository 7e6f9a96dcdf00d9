package redislock

import (
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// guarantees are those of one Redis server. appendOnly: every server writes an
// append-only file, which survives the death of the process.
func guarantees(appendOnly bool) backend.Guarantees {
	g := backend.Guarantees{
		Name:  "redis",
		Reach: backend.ReachNetwork,
		Assumptions: []string{
			"The server keeps the record while it is held: no restart without its data, no eviction, no FLUSHALL.",
			"It does not fail over to a replica that has not received the record.",
			"In a planned switchover the old server is a replica or stopped before the address leads to the new one.",
			"Nobody else writes under the prefix.",
			"The server's wall clock is not set forward while a key is held.",
			"The clock rates of server and holder differ by less than one percent.",
			"After a loss of data or counters, the server's wall clock is not behind the last token; else tokens may fall.",
		},
		Expiry:         backend.ClockServerWall,
		MinTTL:         wire.MinTTL,
		MaxTTL:         wire.MaxTTL,
		TTLGrain:       time.Millisecond,
		Token:          backend.TokenCounter,
		TokenSurvives:  []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved, backend.FaultRestart, backend.FaultDataLoss},
		Reentrancy:     backend.ReentrancyServer,
		Waiting:        backend.WaitPush,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
		HolderDetails:  true,
		GuardedWrite:   true,
	}
	if appendOnly {
		g.HoldsSurvive = []backend.Fault{backend.FaultRestart}
	}
	return g
}
