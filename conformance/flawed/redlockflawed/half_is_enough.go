package redlockflawed

import "github.com/mortiselock/lock/backend"

var z21 = Lock{
	ID: "Z21", Title: "half of the nodes are enough",
	Summary: "With four nodes and a quorum of N/2, two clients have two nodes each, and both hold the key.",
	Seen:    "forms that round N/2 down and forget the plus one; the tests of madelson/DistributedLock have this case.",
	Instead: "A majority is N/2+1 of all configured nodes, whatever their number and however many are up.",
	File:    "half_is_enough.go", Nodes: 4,
	Rule: "ConcurrentTries",
	on: func(t textbook) backend.Backend {
		t.votesNeeded = len(t.nodes) / 2
		return t
	},
}
