package redlockflawed

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

var z22 = Lock{
	ID: "Z22", Title: "the nodes are asked in turn, each for as long as it takes",
	Summary: "One server that stands still eats the time of the whole lease: it is not renewed in time, although a majority would answer at once.",
	Seen:    "go-redsync/redsync#133 and #140, mike-marcacci/node-redlock#88 and #262, madelson/DistributedLock#162.",
	Instead: "Ask all at the same time, each for far less than the TTL, and go on as soon as a majority has answered.",
	File:    "one_by_one.go", Nodes: 3, Frozen: true,
	Rule: "RenewKeeps",
	on: func(t textbook) backend.Backend {
		t.oneByOne, t.timeout = true, 9*time.Second // three TTLs
		return t
	},
}
