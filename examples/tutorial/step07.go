package main

import "strconv"

// takeAt takes the lock for 10 seconds, at a time of the client's clock.
func takeAt(c *client, now int64) bool {
	if must(c.SetNX(ctx, job, now+10, 0).Result()) {
		return true
	}
	if must(c.Get(ctx, job).Int64()) > now {
		return false // somebody else's time is not over
	}
	before := must(c.Do(ctx, "GETSET", job, now+10).Text())
	return must(strconv.ParseInt(before, 10, 64)) <= now
}

func step7(s *scene) {
	a, b := s.client("a"), s.client("b")
	s.say("a has the lock:", takeAt(a, 1000))
	s.say("b has the lock:", takeAt(b, 1011)) // a second later, by a clock that is fast
}
