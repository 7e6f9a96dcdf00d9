package redlockflawed

import "github.com/mortiselock/lock/backend"

var z19 = Lock{
	ID: "Z19", Title: "what a failed acquisition got is not given back",
	Summary: "Each of several keeps a few nodes, and nobody gets the key.",
	Seen:    "antirez/redlock-rb#3.",
	Instead: "Release on every node that granted the key or did not answer.",
	File:    "keeps_minority.go",
	Rule:    "ConcurrentTries",
	On: onNodes{nodes: 3, change: func(t textbook) backend.Backend {
		t.keepsMinority = true
		return t
	}},
}
