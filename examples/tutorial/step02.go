package main

import "time"

func setnxExpire(c *client) bool {
	return must(c.SetNX(ctx, job, c.name, 0).Result()) &&
		must(c.Expire(ctx, job, 10*time.Second).Result())
}

func step2(s *scene) {
	a, b := s.client("a"), s.client("b")
	a.diesBefore("expire", func() { setnxExpire(a) })
	setnxExpire(b)
	b.Do(ctx, "PTTL", job)
}
