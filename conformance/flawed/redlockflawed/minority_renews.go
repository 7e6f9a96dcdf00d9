package redlockflawed

import "github.com/mortiselock/lock/backend"

var z23Minority = Lock{
	ID: "Z23", Title: "a minority is enough to renew",
	Summary: "The holder goes on while one node confirms it.",
	Seen:    "The library distributed-lock-rs, which counts over the nodes that voted for the acquisition.",
	Instead: "A majority of all nodes, which have had the hold without a break.",
	File:    "minority_renews.go",
	Rule:    "LostOnRemoval",
	On: onNodes{nodes: 3, change: func(t textbook) backend.Backend {
		t.minorityRenews = true
		return t
	}},
}
