package main

func setnx(c *client) bool {
	return must(c.SetNX(ctx, job, c.name, 0).Result())
}

func step1(s *scene) {
	a, b := s.client("a"), s.client("b")
	a.diesBefore("del", func() {
		setnx(a)
		a.Del(ctx, job) // the work is done
	})
	setnx(b)
	b.Do(ctx, "PTTL", job)
}
