package redlockflawed

import "github.com/mortiselock/lock/backend"

var z21Errors = Lock{
	ID: "Z21", Title: "a node that does not answer counts as a vote",
	Summary: "With one of three nodes away, one vote is enough.",
	Seen:    "Counting the nodes that refused.",
	Instead: "Count the nodes that said yes.",
	File:    "errors_are_votes.go", Slow: true,
	Rule: "ConcurrentTries",
	On: onNodes{nodes: 3, change: func(t textbook) backend.Backend {
		t.errorsAreVotes = true
		return t
	}},
}
