package redlockflawed

import "github.com/mortiselock/lock/backend"

var z19 = Lock{
	ID: "Z19", Title: "what a failed acquisition got is not given back",
	Summary: "When several ask at the same moment each gets a few nodes; everybody keeps them, and nobody can have the key until they expire.",
	Seen:    "antirez/redlock-rb#3, and forms that release only what they believe to hold.",
	Instead: "Send the release to every node that granted the key or did not answer, before reporting the failure.",
	File:    "keeps_minority.go", Nodes: 3,
	Rule: "ConcurrentTries",
	on: func(t textbook) backend.Backend {
		t.keepsMinority = true
		return t
	},
}
