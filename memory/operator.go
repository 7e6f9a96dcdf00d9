package memlock

import "github.com/mortiselock/lock/backend"

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
