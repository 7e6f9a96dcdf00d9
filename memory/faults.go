package memlock

import (
	"errors"
	"fmt"

	"github.com/mortiselock/lock/backend"
)

// Op is an operation that a fault can hit.
type Op string

// The operations.
const (
	OpTry     Op = "try"
	OpRenew   Op = "renew"
	OpRelease Op = "release"
)

// ErrFault is the error of an injected fault. The lock package treats it like any
// error of a network: outcome unknown.
var ErrFault = errors.New("memlock: injected fault")

// faults are what a store was told to do wrong. The store's mutex guards them.
type faults struct {
	fail map[Op]int // requests that are to fail without effect; negative: all
	drop map[Op]int // answers that are to be lost after the effect
}

// FailRequests makes the next n requests of the kind fail before they have any
// effect; a negative n means all until it is called again with zero.
func (s *Store) FailRequests(op Op, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.fail == nil {
		s.faults.fail = map[Op]int{}
	}
	s.faults.fail[op] = n
}

// DropReplies makes the next n requests of the kind take effect and then answer
// with an error; a negative n means all until it is called again with zero.
func (s *Store) DropReplies(op Op, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.drop == nil {
		s.faults.drop = map[Op]int{}
	}
	s.faults.drop[op] = n
}

// Remove deletes whatever the store knows of a key, as an operator would. Tokens
// go on increasing. It reports whether the key was held.
func (s *Store) Remove(key string) bool {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.live(key, now) != nil
	delete(s.records, key)
	if q := s.liveQueue(key, now); q != nil {
		held = true
		q.removeHolder()
		s.advance(key, q, now)
	}
	s.signal(key)
	return held
}

// before is called at the start of a request, after at its end. The mutex is held.
func (s *Store) before(op Op) error {
	if take(s.faults.fail, op) {
		return fmt.Errorf("%w: the %s was not sent", ErrFault, op)
	}
	return nil
}

func (s *Store) after(op Op) error {
	if take(s.faults.drop, op) {
		return fmt.Errorf("%w: the answer to the %s was lost", ErrFault, op)
	}
	return nil
}

func take(m map[Op]int, op Op) bool {
	n := m[op]
	if n > 0 {
		m[op] = n - 1
	}
	return n != 0
}

// EndSession ends the sessions of all Lockers on the store that has the
// personality with a queue: all their holds are lost, and they are told.
func (s *Store) EndSession() {
	s.mu.Lock()
	now := s.clock.Now()
	var tell []func()
	for key, q := range s.queues {
		for _, n := range q.nodes {
			n.gone = backend.ErrSessionLost
			n.notify()
			if n.granted {
				lost, id := n.session.lost, n.id
				if lost != nil {
					tell = append(tell, func() { lost(id, backend.ErrSessionLost) })
				}
			}
		}
		q.nodes = nil
		s.advance(key, q, now)
	}
	s.mu.Unlock()
	for _, f := range tell {
		f()
	}
}
