package main

func takeWithToken(c *client) (token int64, ok bool) {
	token = must(c.Incr(ctx, job+":token").Result())
	return token, take(c)
}

func step11(s *scene) {
	a, b := s.client("a"), s.client("b")
	a.before["set"] = func() {
		token, _ := takeWithToken(b)
		s.say("the first holder's token:", token)
		must(0, release(b))
	}
	token, _ := takeWithToken(a)
	s.say("the second holder's token:", token)
}
