package main

func compareThenDel(c *client) {
	if must(c.Get(ctx, job).Result()) == c.name {
		c.Del(ctx, job)
	}
}

func step4(s *scene) {
	a, b, c := s.client("a"), s.client("b"), s.client("c")
	take(a)
	a.before["del"] = func() { s.timePasses(); take(b) }
	compareThenDel(a)
	take(c)
}
