//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// trial runs two copies, and kills or pauses the one that works.
type trial struct {
	setup
	kills  int
	pauses int
}

// result is what became of the tasks.
type result struct {
	trial
	tasks, done, failed int
	begun               int // more than tasks: some were begun again
	refused             int // late finishes that had no effect
	stale               int // effects by a copy whose claim another one had taken over
	twice               int // tasks that had their effect more than once
	missing             int // tasks that are done without an effect, or the other way round
	took                time.Duration
}

// wrong says what must not be: each good task is done with one effect, and no other.
func (r result) wrong() error {
	bad := r.tasks / 20
	if r.done != r.tasks-bad || r.failed != bad || r.stale > 0 || r.twice > 0 || r.missing > 0 {
		return fmt.Errorf("%d effects were those of stale claims; of %d tasks %d were to be done once and %d to fail, but %d were done and %d failed; %d had their effect more than once, and %d without being done, or not at all", r.stale, r.tasks, r.tasks-bad, bad, r.done, r.failed, r.twice, r.missing)
	}
	return nil
}

const (
	// perKill is how many tasks are added before each kill and each pause.
	perKill = 10
	// patience bounds what a loaded machine may take.
	patience = 2 * time.Minute
	glance   = time.Millisecond
)

func (t trial) run(ctx context.Context) (r result, err error) {
	begun := time.Now()
	tasks, err := t.open()
	if err != nil {
		return r, err
	}
	defer tasks.Close()
	if s, ok := tasks.(*sqlStore); ok {
		if err := s.create(ctx); err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, s.drop(context.WithoutCancel(ctx))) }()
	}
	if err := tasks.Add(ctx, perKill); err != nil {
		return r, err
	}
	watched, c, err := newCopies(ctx, t.setup)
	if err != nil {
		return r, err
	}
	err = t.disturb(watched, tasks, c)
	if err == nil {
		_, err = until(watched, tasks, "every task is finished", patience, view.finished)
	}
	c.end()
	if err != nil {
		return r, err
	}
	v, err := tasks.Look(ctx)
	r = count(v)
	r.trial, r.took = t, time.Since(begun)
	return r, err
}

// disturb starts the copies, and does to them what the trial is about.
func (t trial) disturb(ctx context.Context, tasks store, c *copies) error {
	for range 2 {
		if err := c.start(); err != nil {
			return err
		}
	}
	var last uint64
	for range t.kills {
		if err := tasks.Add(ctx, perKill); err != nil {
			return err
		}
		v, err := untilBusy(ctx, tasks, "the other copy works", func(v view) bool {
			n := v.newest()
			return n.Token > last && c.runs(n.PID)
		})
		if err != nil {
			return err
		}
		last = v.newest().Token
		pause(ctx, rand.N(4*t.Takes))
		if err := c.kill(v.newest().PID); err != nil {
			return err
		}
	}
	for range t.pauses {
		if err := tasks.Add(ctx, perKill); err != nil {
			return err
		}
		if err := t.pauseHolder(ctx, tasks, c); err != nil {
			return err
		}
	}
	return nil
}

// pauseHolder stops the copy that works in the middle of a task, until the other one has done
// that task, and waits for what comes of the late finish. With the state alone the other one has
// begun the task, and is stopped too. Where a copy was stopped at another moment, it is repeated
// with another task.
func (t trial) pauseHolder(ctx context.Context, tasks store, c *copies) error {
	for begun := time.Now(); ; {
		seen := map[int]int{}
		first := true
		var in task
		_, err := untilBusy(ctx, tasks, "a task is begun", func(v view) bool {
			for _, each := range v.Tasks {
				if each.State == dispatched && !bad(each.ID) && c.runs(each.PID) && !first && each.Begun > seen[each.ID] {
					in = each
				}
				seen[each.ID] = each.Begun
			}
			first = false
			return in.ID != 0
		})
		if err != nil {
			return err
		}
		pause(ctx, t.Takes/4) // into the middle of it
		if err := c.stop(in.PID); err != nil {
			return err
		}
		after, err := tasks.Look(ctx)
		if err == nil && after.Tasks[in.ID-1] != in {
			err = errWaited // it was done before the copy was stopped
		}
		if err == nil {
			err = unlocked(ctx, tasks)
		}
		other := func(v view) bool {
			now := v.Tasks[in.ID-1]
			if t.Check == byState {
				return now.State == dispatched && now.Token > in.Token && now.Begun > in.Begun
			}
			return now.State == done && now.Token > in.Token
		}
		var v view
		if err == nil {
			v, err = until(ctx, tasks, "the other copy does the task", 10*t.TTL+2*time.Second, other)
		}
		both := []int{in.PID}
		if err == nil && t.Check == byState { // the other copy does not finish the task first
			both = append(both, v.Tasks[in.ID-1].PID)
			if err := c.stop(both[1]); err != nil {
				return err
			}
			if v, err = tasks.Look(ctx); err == nil && !other(v) {
				err = errWaited
			}
			if err == nil {
				err = unlocked(ctx, tasks)
			}
		}
		if stopped := c.signal(in.PID, syscall.SIGCONT); stopped != nil {
			return stopped
		}
		if err == nil {
			_, err = until(ctx, tasks, "the paused copy finishes the task", patience, func(now view) bool {
				return now.finishes(in.ID) > v.finishes(in.ID)
			})
		}
		for _, pid := range both[1:] {
			if stopped := c.signal(pid, syscall.SIGCONT); stopped != nil {
				return stopped
			}
		}
		if !errors.Is(err, errWaited) || time.Since(begun) > patience { // or the copy was stopped while it had the store locked
			return err
		}
	}
}

// unlocked reports with errWaited that the copy which was stopped is in the middle of a step.
func unlocked(ctx context.Context, tasks store) error {
	busy, err := tasks.Busy(ctx)
	if busy {
		return errWaited
	}
	return err
}

var errWaited = errors.New("waited in vain")

// until looks at the store until it is so.
func until(ctx context.Context, tasks store, what string, long time.Duration, is func(view) bool) (view, error) {
	for begun := time.Now(); ; {
		if ctx.Err() != nil {
			return view{}, context.Cause(ctx)
		}
		v, err := tasks.Look(ctx)
		if err != nil || is(v) {
			return v, err
		}
		if time.Since(begun) > long {
			return v, fmt.Errorf("%w for %s until %s", errWaited, long, what)
		}
		pause(ctx, glance)
	}
}

// untilBusy is until, with more tasks whenever all are finished, so that somebody works.
func untilBusy(ctx context.Context, tasks store, what string, is func(view) bool) (view, error) {
	for {
		so := false
		v, err := until(ctx, tasks, what, patience, func(v view) bool {
			so = is(v)
			return so || v.finished()
		})
		if err == nil && !so {
			err = tasks.Add(ctx, perKill)
		}
		if err != nil || so {
			return v, err
		}
	}
}

func count(v view) (r result) {
	effects := v.effects()
	r.stale = v.stale(0)
	r.tasks, r.refused = len(v.Tasks), len(v.Refused)
	for _, t := range v.Tasks {
		r.begun += t.Begun
		switch t.State {
		case done:
			r.done++
		case failed:
			r.failed++
		}
		switch n := effects[t.ID]; {
		case n > 1:
			r.twice++
		case (n == 1) != (t.State == done):
			r.missing++
		}
	}
	return r
}
