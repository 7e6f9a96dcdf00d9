package redlockflawed

import "github.com/mortiselock/lock/backend"

var z23 = Lock{
	ID: "Z23", Title: "a renewal writes missing records again, and counts them",
	Summary: "A lease that has expired on a majority, and that somebody else may have had since, comes back to life when its renewal arrives.",
	Seen:    "the SetNXOnExtend option of go-redsync; leandromoreira/redlock-rb#36.",
	Instead: "Count the nodes that had the hold without a break. With a majority of them, put it back on the others, and count those from the next renewal on.",
	File:    "counts_recreated.go", Nodes: 3,
	Rule: "RenewNeverResurrects",
	on: func(t textbook) backend.Backend {
		t.recreates = true
		return t
	},
}
