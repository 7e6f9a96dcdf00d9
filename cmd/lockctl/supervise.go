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
}

// outcome is how a command ended.
type outcome struct {
	status int   // as the shell counts: the command's own, or 128+n
	lost   error // the hold ended first; errors.Is tells why
	stop   bool  // the command had to be stopped
	killed bool  // with SIGKILL
	gone   bool  // nothing of its process group is left
}

func (o outcome) describe(command string) string {
	name := filepath.Base(command)
	switch {
	case o.stop && !o.gone:
		return fmt.Sprintf("%s was killed, but processes that it started may still run", name)
	case o.killed:
		return fmt.Sprintf("%s was killed", name)
	case o.stop:
		return fmt.Sprintf("%s was stopped", name)
	case o.status == exitOK:
		return fmt.Sprintf("%s ended successfully", name)
	}
	return fmt.Sprintf("%s ended with status %d", name, o.status)
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

// run starts the command and returns when it has ended, and when it lost its
// hold, when its whole process group has. An error means that the command was not
// started.
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

	// The command does not run before the guard knows what to kill, and when.
	s.guard.watch(s.process.pid)
	s.follow()
	if s.lost == nil {
		if err := s.process.proceed(); err != nil {
			s.guard.dismiss()
			return outcome{}, err
		}
	}
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
		}
	}
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
	s.guard.killIn(left - kill/2)
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
	s.guard.killIn(left + kill/2)
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
	if !s.jobs.signal(sig) {
		s.process.forward(sig)
	}
}

// end is called when the command itself has ended.
func (s *supervisor) end(e event) outcome {
	out := outcome{status: e.status, lost: s.lost, stop: s.lost != nil, killed: s.killed}
	if s.lost == nil {
		_, kill := margins(s.ttl, s.worth, s.grace)
		switch {
		case e.killed && !s.deadline.IsZero() && time.Until(s.deadline) <= kill/2:
			// Nobody but the guard kills at this moment.
			out.lost, out.stop = errPaused, true
			s.kill()
		case s.lease.Context().Err() != nil:
			out.lost = context.Cause(s.lease.Context())
		}
	}
	if !out.stop {
		s.guard.dismiss()
		return out
	}
	out.gone = s.drain()
	out.killed = s.killed || e.killed
	s.guard.dismiss()
	return out
}

// drain waits for the rest of the process group of a command that lost its hold,
// and kills it when its time is up. It reports whether nothing is left.
func (s *supervisor) drain() bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var giveUp <-chan time.Time
	if s.killed {
		s.process.kill() // those that were forked meanwhile
		giveUp = time.After(time.Second)
	}
	for s.process.groupAlive() {
		select {
		case <-tick.C:
		case <-s.timer.C:
			s.kill()
			giveUp = time.After(time.Second)
		case <-giveUp:
			return false
		}
	}
	return true
}
