package redlockflawed

import "github.com/mortiselock/lock/backend"

var z23Minority = Lock{
	ID: "Z23", Title: "a minority is enough to renew",
	Summary: "The majority has lost the key, or has given it to somebody else, and the holder goes on as long as one node confirms it.",
	Seen:    "forms that keep a lease that any node has extended; distributed-lock-rs counts the majority of an extension over the nodes that voted for the acquisition.",
	Instead: "A renewal needs what an acquisition needs: a majority of all configured nodes, which have had the hold without a break.",
	File:    "minority_renews.go", Nodes: 3,
	Rule: "LostOnRemoval",
	on: func(t textbook) backend.Backend {
		t.minorityRenews = true
		return t
	},
}
