package redlockflawed

import "github.com/mortiselock/lock/backend"

var z23 = Lock{
	ID: "Z23", Title: "a renewal writes missing records again, and counts them",
	Summary: "A lease that has expired on a majority comes back.",
	Seen:    "SetNXOnExtend of go-redsync; leandromoreira/redlock-rb#36.",
	Instead: "Count the nodes that had the hold without a break; put it back on the others afterwards.",
	File:    "counts_recreated.go",
	Rule:    "RenewNeverResurrects",
	On: onNodes{nodes: 3, change: func(t textbook) backend.Backend {
		t.recreates = true
		return t
	}},
}
