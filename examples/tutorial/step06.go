package main

const compareAndDel = `
	if redis.call('GET', KEYS[1]) == ARGV[1] then
		return redis.call('DEL', KEYS[1])
	end
	return 0`

func release(c *client) error {
	return c.Eval(ctx, compareAndDel, []string{job}, c.name).Err()
}

func step6(s *scene) {
	a, b := s.client("a"), s.client("b")
	take(a)
	s.timePasses()
	take(b)
	s.say("a's release says:", release(a))
}
