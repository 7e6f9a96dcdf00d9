package zkflawed

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

var z35 = Lock{
	ID: "Z35", Title: "a node of the own session is one's own",
	Summary: "Two goroutines of one session both hold the key.",
	Seen:    "projecteru2/core#698; etcd-io/etcd#11364.",
	Instead: "Name every acquisition.",
	File:    "owner_per_session.go",
	Rule:    "ReentrantExplicit",
	Also:    twoHolders,
	On:      onZooKeeper(func(r *recipe) backend.Backend { return ownerPerSession{r} }),
}

// ownerPerSession creates one node per key, and when it is there already looks whose it
// is: the answer to an earlier attempt may have been lost.
//
//	goroutine 1: create job/lock                       -> holds
//	goroutine 2: create job/lock -> it exists; its owner is our session: it is ours, holds
//
// Caught by ReentrantExplicit, which asks twice through one client, without an owner and with two.
//
// Instead: put the id of the acquisition into the node, and compare that.
type ownerPerSession struct{ *recipe }

func (s ownerPerSession) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	if s.find(req.ID) != nil || ctx.Err() != nil {
		return s.recipe.Try(ctx, req)
	}
	sent := now()
	path := dirOf(req.Key) + "/lock"
	for {
		_, err := s.conn.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		switch {
		case err == nil:
			return s.granted(req, path, sent)
		case errors.Is(err, zk.ErrNodeExists):
			found, stat, err := s.conn.Exists(path)
			switch {
			case err != nil:
				return backend.Grant{}, err
			case !found:
				continue
			case stat.EphemeralOwner != s.conn.SessionID():
				return backend.Grant{}, &backend.HeldError{Key: req.Key}
			}
			return s.granted(req, path, sent)
		case !errors.Is(err, zk.ErrNoNode):
			return backend.Grant{}, err
		}
		for _, parent := range []string{root, dirOf(req.Key)} {
			if _, err := s.conn.Create(parent, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return backend.Grant{}, fmt.Errorf("creating %s: %w", parent, err)
			}
		}
	}
}

// twoHolders are the rules that may see it when two acquisitions have a key at a time:
// when the later one releases it, what is left of the earlier one is in the way, too.
var twoHolders = []string{"AcquireKeepsTTL", "ContextEndsFirst", "WakesAtAnyMoment", "GaveUpWakesNext",
	"Progress", "Exclusive", "ExclusiveAcrossTakeover", "ExclusiveWithinLocker", "IndependentKeys", "TryIsImmediate", "Progress",
	"HeldDetails", "ReleaseFrees", "ReleaseOwnOnly", "ReleaseOldLeaseSameClient", "ReleaseTwice", "ReleaseDetached",
	"ReleaseReportsLoss", "ReleaseStopsRenewal", "ReleaseAtExpiry", "CrashFrees", "ServerOutlivesD", "HoldersTTLCounts",
	"ExpiryIsPerHold", "TTLGrain", "EveryTTLLasts", "CrashBetweenSteps", "RenewKeeps", "RenewByHand", "RenewNotOthers",
	"RenewBounded", "WithoutRenewalEnds", "MaxHoldEnds", "LostBeforeTakeover", "LostOnRemoval", "LossEndsUse",
	"HoldOutlivesAcquireCtx", "TokenIncreases", "TokenSurvivesRelease", "TokenStable", "TokenInGrantOrder", "TokenInTakeoverOrder",
	"ReentrantCount", "ReentrantExplicit", "ReentrantSameToken", "ReentrantExtends", "ReentrantOtherLocker", "ReentrantAfterLoss",
	"ReentrantOverWaiters", "ReentrantOwnLeases", "ReentrantLimit", "ReentrantModel", "WaiterWakes", "WaiterGivesUp",
	"WaiterDeathHarmless", "CancelDuring", "CancelHarmsNobody", "WaiterOrderLocal", "FairOrder", "TryBesideWaiters", "ManyWaiters",
	"NoHerd", "WaitIsCalm", "WaitOutlastsTTL", "ErrorsAreTyped", "NoSecretsInErrors", "LeaseConcurrent", "CloseEndsHolds",
	"CloseEndsWaits", "CloseTwice", "NoLeak", "LostWhenCutOff", "RenewTransient", "RenewUnknown", "OwnGrantRecognised", "LateGrant",
	"ReleaseUnknown", "ReleaseDelayed", "HandOverUnknown", "CancelMidRequest", "UnavailableIsTold", "PermanentStops",
	"CallsAreBounded", "ReentrantFault", "ProgressUnderFaults", "TryIdempotent", "ReleaseByID", "RenewByID", "RefusalLeavesNothing",
	"CancelledSendsNothing", "BackendErrors", "ConcurrentTries", "Defaults", "EndedContexts", "LongestNames", "ManyLeases", "HolderIsShown",
}
