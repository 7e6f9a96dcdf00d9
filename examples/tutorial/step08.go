package main

import "time"

// keepAlive runs every three seconds while the client works.
func keepAlive(c *client) bool {
	return must(c.Expire(ctx, job, 10*time.Second).Result())
}

func step8(s *scene) {
	a, b := s.client("a"), s.client("b")
	take(a)
	s.timePasses() // a is paused
	take(b)
	s.say("a may go on:", keepAlive(a))
}
