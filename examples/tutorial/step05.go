package main

import goredis "github.com/redis/go-redis/v9"

func watchThenDel(c *client) error {
	return c.Watch(ctx, func(tx *goredis.Tx) error {
		if must(tx.Get(ctx, job).Result()) != c.name {
			return nil
		}
		_, err := c.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			return p.Del(ctx, job).Err()
		})
		return err
	}, job)
}

func step5(s *scene) {
	a, b, c := s.client("a"), s.client("b"), s.client("c")
	take(a)
	a.before["multi"] = func() { s.timePasses(); take(b) }
	s.say("a's release says:", watchThenDel(a))
	take(c)
}
