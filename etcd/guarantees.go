package etcdlock

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

const (
	grain = time.Second
	// maxTTL is what etcd accepts (lessor, maxTTL).
	maxTTL = 9_000_000_000 * time.Second
	// takeoverLag covers the half second between two looks of the server at its
	// leases, and the round of consensus of the revocation. A new leader lets every lease
	// begin anew.
	takeoverLag = time.Second
)

// guarantees are those of an etcd cluster that grants leases of at least minTTL.
func guarantees(minTTL time.Duration) backend.Guarantees {
	return backend.Guarantees{
		Name:  "etcd",
		Reach: backend.ReachNetwork,
		Assumptions: []string{
			"The cluster is not restored from a backup or started anew from one member while a key is held.",
			"When it is, the revision is raised: etcdutl snapshot restore --bump-revision --mark-compacted.",
			"The clock rates of server and holder differ by less than one percent.",
			"No leader stalls and goes on: it may revoke renewed leases; 3.5.23, 3.6.5 and later do so hardly ever.",
			"Nobody else writes under the prefix.",
		},
		Expiry:          backend.ClockServerSteady,
		MinTTL:          minTTL,
		MaxTTL:          maxTTL,
		TTLGrain:        grain,
		TakeoverLag:     takeoverLag,
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
