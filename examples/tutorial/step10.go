package main

// redlock asks all servers for the lock.
func redlock(servers []*client) bool {
	votes := 0
	for _, c := range servers {
		if take(c) {
			votes++
		}
	}
	return votes >= len(servers)/2
}

func step10(s *scene) {
	a, b := s.onNodes("a"), s.onNodes("b")
	a[2].before["set"] = func() { s.say("b has the lock:", redlock(b)) }
	s.say("a has the lock:", redlock(a))
}
