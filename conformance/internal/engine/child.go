package engine

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// childVar marks a process that the suite has started.
const childVar = "MORTISE_CONFORMANCE_CHILD"

// childCalled is set when this process would play a part if the suite started it
// once more.
var childCalled atomic.Bool

var errInChild = errors.New("conformance: this process was started by the suite to play a part, and must not run the suite itself: call conformance.Child before everything else in TestMain or main")

// Child plays the part of a process that the suite has started, and exits. In every
// other process it returns at once.
func Child(config func(child string) Config) {
	childCalled.Store(true)
	if os.Getenv(childVar) == "" {
		return
	}
	_ = os.Unsetenv(childVar) // processes that the lock starts are no part of the suite
	os.Exit(play(config))
}

// The suite and its processes talk in lines of JSON: commands on the standard
// input, answers on the standard output. Several commands may be under way.

// Command is a line from the suite.
type Command struct {
	ID        int           `json:"id"`
	Op        string        `json:"op"`
	Child     string        `json:"child,omitempty"` // Config.Child
	Key       string        `json:"key,omitempty"`
	TTL       time.Duration `json:"ttl,omitempty"` // zero: none is given
	Unrenewed bool          `json:"unrenewed,omitempty"`
	Owner     string        `json:"owner,omitempty"`
	Label     string        `json:"label,omitempty"`
	Limit     time.Duration `json:"limit,omitempty"` // of a wait or a loop
	Lease     int           `json:"lease,omitempty"`
	Spin      bool          `json:"spin,omitempty"`
	Counter   string        `json:"counter,omitempty"` // a file
	Work      time.Duration `json:"work,omitempty"`
}

// The commands.
const (
	opOpen    = "open"    // open a client
	opTry     = "try"     // TryAcquire
	opAcquire = "acquire" // Acquire
	opRenew   = "renew"
	opRelease = "release"
	opSee     = "see"   // say what the lease says
	OpWrite   = "write" // write to a resource of the suite, without another look
	opLook    = "look"  // look at the lease's context until it has ended
	opCycle   = "cycle" // acquire and release again and again
)

// Answer is a line to the suite. Times are nanoseconds of the machine's monotonic
// clock.
type Answer struct {
	ID       int      `json:"id"`
	Event    string   `json:"event,omitempty"` // empty in the last answer to a command
	From     int64    `json:"from,omitempty"`  // when the call was made
	To       int64    `json:"to,omitempty"`    // when it returned
	Err      string   `json:"err,omitempty"`
	Is       []string `json:"is,omitempty"` // the sentinels that the error matches
	Lease    int      `json:"lease,omitempty"`
	Token    uint64   `json:"token,omitempty"`
	Deadline int64    `json:"deadline,omitempty"` // zero: unknown
	Ended    bool     `json:"ended,omitempty"`    // the lease's context has ended, Err is its cause
	Alive    int64    `json:"alive,omitempty"`    // when the last look began that found the lease alive
	Made     int      `json:"made,omitempty"`     // updates of the counter
	Doubted  bool     `json:"doubted,omitempty"`  // a lease had run out by the end of its work
	Stalls   []span   `json:"stalls,omitempty"`   // when this process did not get to run
}

// The events of a command that has more than one answer.
const (
	eventHello     = "hello"
	eventLooking   = "looking"
	eventGranted   = "granted"
	eventReleasing = "releasing"
)

// span is a time between two readings of the machine's monotonic clock.
type span struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// hostClock reads the monotonic clock that all processes of the machine share.
// time.Now's own reading has another base in each process.
type hostClock struct {
	base time.Time
	mono int64
}

func newHostClock() hostClock {
	var c hostClock
	closest := time.Duration(1<<63 - 1)
	for range 16 {
		before := time.Now()
		mono := monotonic()
		if d := time.Since(before); d < closest {
			closest, c = d, hostClock{before.Add(d / 2), mono}
		}
	}
	return c
}

func (c hostClock) now() int64 { return c.at(time.Now()) }

func (c hostClock) at(t time.Time) int64 { return c.mono + int64(t.Sub(c.base)) }

func (c hostClock) time(mono int64) time.Time { return c.base.Add(time.Duration(mono - c.mono)) }
