package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mortiselock/lock"
)

// errPaused: the guard had to stop the command, because lockctl did not.
var errPaused = errors.New("lockctl was paused")

// command is what to run.
type command struct {
	path  string // of the executable
	argv  []string
	env   []string
	files [3]*os.File // standard input, output and error; nil means the null device
}

// supervisor runs one command under one lease, in one goroutine.
type supervisor struct {
	lease   lock.Lease
	ttl     time.Duration
	grace   time.Duration
	signals chan os.Signal
	renewed <-chan struct{} // hints that the deadline has moved

	process  *process
	guard    *guard
	jobs     *jobControl
	deadline time.Time     // the latest known; zero when unknown
	worth    time.Duration // the most that was left until a deadline
	timer    *time.Timer
	lost     error // why the command is being stopped
	killed   bool
	asked    bool // a signal that asks to end was passed on
}

// outcome is how a command ended.
type outcome struct {
	status int   // as the shell counts: the command's own, or 128+n
	lost   error // the hold ended first; errors.Is tells why
	stop   bool  // the command had to be stopped
	killed bool  // with SIGKILL
	gone   bool  // it was stopped, and nothing is left of it that lockctl can see
	rest   bool  // it was not stopped, and what it has left behind could not be ended
	never  bool  // it was not started
	keeper bool  // its keeper was killed, and it with the keeper
}

func (o outcome) describe(command string) string {
	name := filepath.Base(command)
	var end string
	switch {
	case o.never:
		return name + " was not started"
	case o.stop && !o.gone:
		return fmt.Sprintf("%s was killed, but processes that it started may still run", name)
	case o.killed:
		end = "was killed"
	case o.stop:
		end = "was stopped"
	case o.status == exitOK:
		end = "ended successfully"
	default:
		end = fmt.Sprintf("ended with status %d", o.status)
	}
	switch {
	case o.rest:
		end += ", but processes that it started may still run"
	case o.stop && !seesAll:
		end += "; whether processes that it started outside of its process group still run, lockctl cannot see on this system"
	}
	return name + " " + end
}

// margins says how long before the deadline a command is asked to stop, and how
// long before it is killed. worth is how far ahead a renewal moves the deadline:
// nearly the TTL on most backends, and two thirds of it on ZooKeeper. Renewal every
// third of the TTL keeps the remaining time above two thirds; at one third two
// renewals have failed. Where a renewal is worth less, half of the TTL, or else three
// quarters of the worth, is left to the renewals. The kernel needs a moment to end a
// killed process, hence the second margin. The guard, which acts only when lockctl
// does not, waits for half of that.
func margins(ttl, worth, grace time.Duration) (term, kill time.Duration) {
	kill = min(ttl/20, 200*time.Millisecond)
	return max(min(grace, ttl/3, max(worth-ttl/2, worth/4)), kill), kill
}

// run starts the command and returns when it has ended, and when it lost its hold or was
// asked to end, when everything that it has started has. An error means that the command
// was not started.
func (s *supervisor) run(c command) (outcome, error) {
	var err error
	if s.guard, err = startGuard(); err != nil {
		return outcome{}, fmt.Errorf("its guard: %w", err)
	}
	if s.process, err = startProcess(c); err != nil {
		s.guard.dismiss()
		return outcome{}, err
	}
	defer s.process.forget()
	s.jobs = newJobControl(s.process, s.signals)
	defer s.jobs.close()
	s.timer = time.NewTimer(time.Hour)
	defer s.timer.Stop()

	// The command does not run before the helpers know when to kill it.
	s.guard.watch(s.process)
	s.follow()
	if s.lost != nil {
		s.dismiss()
		return outcome{lost: s.lost, stop: true, gone: true, never: true}, nil
	}
	if err := s.process.proceed(); err != nil {
		s.dismiss()
		return outcome{}, err
	}
	s.guard.watch(s.process)
	var again <-chan time.Time // to start another guard
	ended := s.lease.Context().Done()
	for {
		select {
		case e := <-s.process.events:
			if !e.exited {
				if s.lost == nil {
					s.jobs.stopped(e.signal)
				}
				continue
			}
			return s.end(e), nil
		case sig := <-s.signals:
			s.signal(sig)
		case <-s.renewed:
			if s.lost == nil {
				s.follow()
			}
		case <-ended:
			ended = nil
			s.stop(context.Cause(s.lease.Context()))
		case <-s.timer.C:
			if s.lost != nil {
				s.kill()
			} else {
				s.follow()
			}
		case <-s.guard.ended:
			s.guard.ended = nil // once
			again = time.After(0)
		case <-again:
			if again = nil; !s.guardAgain() {
				again = time.After(time.Second)
			}
		}
	}
}

// guardAgain starts another guard in place of one that was killed.
func (s *supervisor) guardAgain() bool {
	g, err := startGuard()
	if err != nil {
		return false
	}
	s.guard = g
	g.watch(s.process)
	switch {
	case s.lost == nil:
		s.follow()
	case !s.deadline.IsZero():
		s.killIn(time.Until(s.deadline))
	}
	return true
}

// killIn has both helpers kill the command after that time.
func (s *supervisor) killIn(d time.Duration) {
	s.process.killIn(d)
	s.guard.killIn(d)
}

func (s *supervisor) dismiss() {
	s.process.dismiss()
	s.guard.dismiss()
}

// follow reads the deadline and arms the timer and the guard for it. It stops
// the command when the deadline is too near.
func (s *supervisor) follow() {
	deadline, ok := s.lease.Deadline()
	if !ok {
		s.timer.Stop()
		return
	}
	s.deadline = deadline
	left := time.Until(deadline)
	s.worth = max(s.worth, left)
	term, kill := margins(s.ttl, s.worth, s.grace)
	if left <= term {
		s.stop(lock.ErrExpired)
		return
	}
	s.timer.Reset(left - term)
	s.killIn(left - kill/2)
}

// stop begins to stop the command: SIGTERM, then SIGKILL while the hold is still
// certain. When it no longer is, somebody else may have started: SIGKILL at once.
func (s *supervisor) stop(cause error) {
	if s.lost != nil {
		return
	}
	s.lost = cause
	term, kill := margins(s.ttl, s.worth, s.grace)
	left := term
	if !s.deadline.IsZero() {
		left = min(left, time.Until(s.deadline)-kill)
	}
	if left <= 0 || s.grace == 0 {
		s.kill()
		return
	}
	s.process.terminate()
	s.timer.Reset(left)
	s.killIn(left + kill/2)
}

func (s *supervisor) kill() {
	s.killed = true
	s.process.kill()
}

func (s *supervisor) signal(sig os.Signal) {
	if isContinue(sig) && s.lost == nil {
		// After a pause the clock decides before the command runs on.
		if s.lease.Context().Err() != nil {
			s.stop(context.Cause(s.lease.Context()))
		} else {
			s.follow()
		}
	}
	if s.lost != nil && isStop(sig) {
		return // a stopped command could not end in time
	}
	s.asked = s.asked || endsWait(sig)
	if !s.jobs.signal(sig) {
		s.process.forward(sig)
	}
}

// end is called when the command itself has ended.
func (s *supervisor) end(e event) outcome {
	out := outcome{status: e.status, lost: s.lost, stop: s.lost != nil, killed: s.killed, keeper: e.keeper}
	if s.lost == nil {
		_, kill := margins(s.ttl, s.worth, s.grace)
		switch {
		case e.killed && !s.deadline.IsZero() && time.Until(s.deadline) <= kill/2:
			// Nobody but a helper kills at this moment.
			out.lost, out.stop = errPaused, true
			s.kill()
		case s.lease.Context().Err() != nil:
			out.lost = context.Cause(s.lease.Context())
		}
	}
	switch {
	case out.stop:
		out.gone = s.drain()
		out.killed = s.killed || e.killed
	case out.lost != nil || s.asked || e.died:
		// It has not ended by itself, or others may have the key: what it has left
		// behind must not work on beside them.
		out.rest = !s.endRest(out.lost != nil)
	}
	s.dismiss()
	return out
}

// endRest ends what a command has left behind, and reports whether nothing is left.
func (s *supervisor) endRest(atOnce bool) bool {
	select {
	case <-s.process.empty:
		if seesAll {
			return true
		}
	default:
	}
	_, kill := margins(s.ttl, s.worth, s.grace)
	left := s.grace
	if !s.deadline.IsZero() {
		left = min(left, time.Until(s.deadline)-kill)
	}
	if atOnce || left <= 0 {
		s.kill()
	} else {
		s.process.terminate()
		s.timer.Reset(left)
	}
	return s.drain()
}

// drain waits for the end of everything that the command has started, and kills it when
// its time is up. It reports whether nothing is left.
func (s *supervisor) drain() bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var giveUp <-chan time.Time
	if s.killed {
		giveUp = time.After(time.Second)
	}
	ended := s.lease.Context().Done()
	if s.lost != nil {
		ended = nil
	}
	for {
		left, known := s.process.left()
		if !left {
			return known
		}
		select {
		case <-tick.C:
			if s.killed {
				s.process.kill() // those that were forked meanwhile
			}
			continue
		case <-giveUp:
			return false
		case <-s.timer.C:
		case <-ended:
			ended = nil
		}
		if !s.killed {
			s.kill()
			giveUp = time.After(time.Second)
		}
	}
}
