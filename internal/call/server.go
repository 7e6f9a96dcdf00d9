package call

import (
	"log/slog"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/schedule"
)

// Server is the backend of one Locker with what every part of the Locker needs beside it.
type Server struct {
	Own     backend.Backend // the backend that was given
	Backend backend.Backend // the same, or with the holds of owners counted
	Counted bool            // the holds of explicit owners are counted on this side
	Clock   backend.Clock
	Log     *slog.Logger
	Calls   *Calls
	Sched   *schedule.Scheduler

	// EndsWithSession is that of the backend's guarantees.
	EndsWithSession bool

	// Observed is what the observer is told, if there is one.
	Observed Observed

	parts    backend.Partitioner
	cleaners Pool
}

// NewServer returns the Server of a backend.
func NewServer(b backend.Backend, clock backend.Clock, log *slog.Logger) *Server {
	s := &Server{
		Own: b, Backend: b, Clock: clock, Log: log, Calls: NewCalls(), Sched: schedule.New(clock),
		EndsWithSession: b.Guarantees().EndsWithSession, cleaners: Pool{Limit: 32},
	}
	s.parts, _ = backend.As[backend.Partitioner](b)
	if i, ok := backend.As[backend.Interruptible](b); ok {
		s.Calls.Interruptible = i.Interruptible()
	}
	if i, ok := backend.As[backend.Immediate](b); ok && i.Immediate() {
		s.Calls.Interruptible, s.Calls.Immediate = true, true
	}
	return s
}

// Partition names what serves the key.
func (s *Server) Partition(key string) string {
	if s.parts == nil {
		return ""
	}
	return s.parts.Partition(key)
}
