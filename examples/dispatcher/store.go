//go:build unix

package main

import (
	"context"
	"errors"
	"slices"
)

// The states of a task. One that fails waits again, and is failed after maxTries.
const (
	waiting    = "waiting"
	dispatched = "dispatched"
	done       = "done"
	failed     = "failed"
)

const maxTries = 3

// task is a row of the table of tasks.
type task struct {
	ID    int    `json:"id"`
	State string `json:"state"`
	Token uint64 `json:"token"` // of the copy that has dispatched it, or made it wait again
	PID   int    `json:"pid"`   // of the same copy
	Begun int    `json:"begun"` // how often somebody has begun to do it
	Tries int    `json:"tries"` // how often it has failed
}

// claim is what a copy may do a task by, and what the queue carries: the task, and the token
// under which it was dispatched.
type claim struct {
	Message int64  `json:"message"` // its number in the queue
	Task    int    `json:"task"`
	Token   uint64 `json:"token"`
}

// errNotOurs: the task is not dispatched under this token, so nothing was changed.
var errNotOurs = errors.New("the task is not dispatched under this token any more")

// check is what a step compares before it changes a task.
type check string

const (
	byToken check = "token"   // the state, and that the task was dispatched under the claim's token
	byState check = "state"   // the state alone
	byLock  check = "nothing" // the lock is trusted
)

// store has the tasks, the queue, and the effects of what was done. Each method is atomic,
// also when its process is killed in the middle. All that changes a task compares its state and
// the token in the same step, unless its check is less.
type store interface {
	// Add adds tasks that wait.
	Add(ctx context.Context, n int) error
	// Requeue has the tasks wait again that were dispatched under a smaller token.
	Requeue(ctx context.Context, token uint64) error
	// Dispatch makes a task that waits a dispatched one. It returns false when none waits.
	Dispatch(ctx context.Context, token uint64, pid int) (c claim, ok bool, err error)
	// Begin counts that somebody begins to do the task, if it is still to be done.
	Begin(ctx context.Context, c claim) error
	// Finish makes the task done, with its effect in the same step; or has it wait again, or
	// fail. Where the claim does not hold, there is no effect: the error matches errNotOurs,
	// and is counted.
	Finish(ctx context.Context, c claim, ok bool) error

	// Send puts the claim on the queue.
	Send(ctx context.Context, c claim) error
	// Receive returns some of what is on the queue, which stays there until Ack.
	Receive(ctx context.Context) ([]claim, error)
	// Ack takes the message off the queue.
	Ack(ctx context.Context, c claim) error

	// Busy reports whether some process is in the middle of a step.
	Busy(ctx context.Context) (bool, error)
	// Look shows everything.
	Look(ctx context.Context) (view, error)
	Close() error
}

// view is what a store has at a time.
type view struct {
	Tasks   []task
	Effects []claim // what was done, in its order
	Refused []claim // the finishes that had no effect
}

// newest is the task that was dispatched last, which tells who works.
func (v view) newest() (t task) {
	for _, each := range v.Tasks {
		if each.State == dispatched && each.Token >= t.Token {
			t = each
		}
	}
	return t
}

// finished reports whether nothing is left to do.
func (v view) finished() bool {
	return !slices.ContainsFunc(v.Tasks, func(t task) bool { return t.State == waiting || t.State == dispatched })
}

// finishes is how often somebody has come to the end of the task, whatever came of it.
func (v view) finishes(task int) (n int) {
	for _, c := range slices.Concat(v.Effects, v.Refused) {
		if c.Task == task {
			n++
		}
	}
	return n
}

// stale is how many effects were written under a token that was not the task's any more, of
// the task or, with zero, of all.
func (v view) stale(of int) (n int) {
	for _, e := range v.Effects {
		if (of == 0 || of == e.Task) && v.Tasks[e.Task-1].Token > e.Token {
			n++
		}
	}
	return n
}

// effects is how often each task had its effect.
func (v view) effects() map[int]int {
	n := map[int]int{}
	for _, e := range v.Effects {
		n[e.Task]++
	}
	return n
}
