package redlockflawed

import "github.com/mortiselock/lock/backend"

var z21Errors = Lock{
	ID: "Z21", Title: "a node that does not answer counts as a vote",
	Summary: "With one of three nodes out of reach, one vote of the others is enough: two clients have one node each, and both hold the key.",
	Seen:    "forms that count the nodes that refused, and take the others for agreed.",
	Instead: "Count the nodes that said yes, and compare with a majority of all. An error and silence are neither a yes nor a no.",
	File:    "errors_are_votes.go", Nodes: 3, Frozen: true,
	Rule: "ConcurrentTries",
	on: func(t textbook) backend.Backend {
		t.errorsAreVotes = true
		return t
	},
}
