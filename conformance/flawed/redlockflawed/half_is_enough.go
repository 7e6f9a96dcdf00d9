package redlockflawed

import "github.com/mortiselock/lock/backend"

var z21 = Lock{
	ID: "Z21", Title: "half of the nodes are enough",
	Summary: "With four nodes, two clients have two each.",
	Seen:    "N/2 without the plus one; tests of madelson/DistributedLock.",
	Instead: "N/2+1 of all configured nodes.",
	File:    "half_is_enough.go",
	Rule:    "ConcurrentTries",
	On: onNodes{nodes: 4, change: func(t textbook) backend.Backend {
		t.votesNeeded = len(t.nodes) / 2
		return t
	}},
}
