package main

import "time"

func take(c *client) bool {
	return must(c.SetNX(ctx, job, c.name, 10*time.Second).Result())
}

func step3(s *scene) {
	a, b, c := s.client("a"), s.client("b"), s.client("c")
	take(a)
	s.timePasses() // the work of a takes longer than 10 seconds
	take(b)
	a.Del(ctx, job) // a has finished
	take(c)
}
