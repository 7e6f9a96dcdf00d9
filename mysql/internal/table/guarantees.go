package table

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

const (
	// minTTL leaves 97 ms after the drift allowance, which is several round
	// trips of a network and a few commits.
	minTTL = 100 * time.Millisecond
	maxTTL = 30 * 24 * time.Hour
)

// Guarantees are those of the lock table. durable: the server wrote its log to
// the disk at every commit when the backend was opened.
func Guarantees(durable bool) backend.Guarantees {
	g := backend.Guarantees{
		Name:  "mysql table",
		Reach: backend.ReachNetwork,
		Assumptions: []string{
			"One MySQL or MariaDB server takes all writes and keeps what it has committed: innodb_flush_log_at_trx_commit is 1.",
			"It does not fail over to a replica that has not received the last commits.",
			"In a planned switchover the old server is read-only before the new one takes writes and the address moves.",
			"On a Galera cluster or with group replication, every Locker writes to the same node.",
			"The server's wall clock is not set forward while a key is held.",
			"The clock rates of server and holder differ by less than one percent.",
			"Nobody else writes to the lock table.",
			"After a loss of data or counters, the server's wall clock is not behind the last token; else tokens may fall.",
		},
		Expiry:         backend.ClockServerWall,
		MinTTL:         minTTL,
		MaxTTL:         maxTTL,
		TTLGrain:       time.Microsecond,
		Token:          backend.TokenCounter,
		TokenSurvives:  []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved, backend.FaultRestart, backend.FaultDataLoss},
		Reentrancy:     backend.ReentrancyServer,
		Waiting:        backend.WaitPoll,
		ManualRenewal:  true,
		WithoutRenewal: true,
		LossSignal:     true,
		Deadline:       true,
		HolderDetails:  true,
		GuardedWrite:   true,
	}
	if durable {
		g.HoldsSurvive = []backend.Fault{backend.FaultRestart}
	}
	return g
}
