package redlockflawed

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

var z22 = Lock{
	ID: "Z22", Title: "the nodes are asked in turn, each for as long as it takes",
	Summary: "One silent server eats the time of the lease.",
	Seen:    "go-redsync/redsync#133 and #140, mike-marcacci/node-redlock#88 and #262.",
	Instead: "Ask all at the same time, each for far less than the TTL.",
	File:    "one_by_one.go", Slow: true,
	Rule: "RenewKeeps",
	On: onNodes{nodes: 3, change: func(t textbook) backend.Backend {
		t.oneByOne, t.timeout = true, 9*time.Second // three TTLs
		return t
	}},
}
