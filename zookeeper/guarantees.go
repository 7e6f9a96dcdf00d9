package zklock

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

// guarantees are those of a Locker whose session was granted the timeout.
func guarantees(timeout time.Duration) backend.Guarantees {
	return backend.Guarantees{
		Name:  "zookeeper",
		Reach: backend.ReachNetwork,
		Assumptions: []string{
			"The ensemble keeps its quorum's data: no restore from a backup, no reset of a majority.",
			"Nobody else deletes nodes below the prefix.",
			"The servers' tickTime is at most half the session timeout, as it is unless minSessionTimeout was set lower.",
			"The clock rates of server and holder differ by less than one percent.",
			"For a hold to survive a restart or a change of the leader, a quorum serves again within two thirds of the TTL.",
		},
		Expiry:          backend.ClockServerSteady,
		MinTTL:          timeout,
		MaxTTL:          timeout,
		TTLGrain:        time.Millisecond,
		TakeoverLag:     timeout / 2,
		EndsWithSession: true,
		Token:           backend.TokenRevision,
		TokenSurvives:   []backend.Fault{backend.FaultClientCrash, backend.FaultRecordRemoved, backend.FaultRestart, backend.FaultFailover},
		HoldsSurvive:    []backend.Fault{backend.FaultRestart, backend.FaultFailover},
		Reentrancy:      backend.ReentrancyClient,
		Waiting:         backend.WaitQueue,
		Fair:            true,
		ManualRenewal:   true,
		WithoutRenewal:  true,
		LossSignal:      true,
		Deadline:        true,
		HolderDetails:   true,
		GuardedWrite:    true,
	}
}
