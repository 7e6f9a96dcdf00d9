package zkflawed

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

var z33 = Lock{
	ID: "Z33", Title: "lost only when the client library says that the session is",
	Summary: "A holder goes on whose node is gone, or whose server has no leader.",
	Seen:    "docker/libkv#156.",
	Instead: "Renew by a quorum's write, and end the hold by a local timer.",
	File:    "session_events_only.go",
	Rule:    "LostOnRemoval",
	Also: []string{
		"RevokeByToken", "ForceReleaseByToken", "GuardedWriteNeverLate", "ProgressUnderFaults",
		"RenewNeverResurrects", "RenewNotOthers", "RenewByID", "RenewAfterRelease", "ReleaseBesideRenewal", "LeaseConcurrent", "LossEndsUse", "ReentrantAfterLoss",
		"LostBeforeTakeover", "PauseIsNoticed", "GuardedWriteWhileHeld", "NoLeak",
		"DeadlineEnds",
	},
	On: onZooKeeper(func(r *recipe) backend.Backend { return sessionEventsOnly{r} }),
}

// sessionEventsOnly takes a session for a lock: as long as the library says that it
// has one, the hold is taken to exist.
//
//	A: creates job/a-0000000001, and holds
//	an operator, or a clean-up script: delete job/a-0000000001
//	B: creates job/b-0000000002, is the first, and holds
//	A: is connected, has its session, and goes on
//
// A follower that is cut off from its leader shows the same: it answers pings and
// reads by itself while the leader ends the session and others take the key. Caught by
// LostOnRemoval, which deletes the node.
//
// Instead: ask for the node, by a write.
type sessionEventsOnly struct{ *recipe }

func (s sessionEventsOnly) Renew(ctx context.Context, of backend.Hold) (backend.Validity, error) {
	if err := ctx.Err(); err != nil {
		return backend.Validity{}, err
	}
	h := s.find(of.ID)
	if h == nil {
		return backend.Validity{}, backend.ErrNotHeld
	}
	sent := now()
	if s.conn.State() != zk.StateHasSession {
		return backend.Validity{}, backend.ErrUnavailable
	}
	if !h.extend(of.TTL) {
		return backend.Validity{}, backend.ErrExpired
	}
	return validity(sent, of.TTL), nil
}
