package main

const takeAndCount = `
	if redis.call('HSETNX', KEYS[1], 'owner', ARGV[1]) == 0 then return 0 end
	redis.call('PEXPIRE', KEYS[1], 10000)
	return redis.call('HINCRBY', KEYS[1], 'token', 1)`

const guardedWrite = `
	local last = redis.call('HGET', KEYS[1], 'token') or 0
	if tonumber(ARGV[1]) < tonumber(last) then return 0 end
	redis.call('HSET', KEYS[1], 'token', ARGV[1], 'text', ARGV[2])
	return 1`

func step12(s *scene) {
	a, b := s.client("a"), s.client("b")
	tokenA := must(a.Eval(ctx, takeAndCount, []string{job}, "a").Int())
	s.timePasses() // a is paused
	tokenB := must(b.Eval(ctx, takeAndCount, []string{job}, "b").Int())
	b.Eval(ctx, guardedWrite, []string{text}, tokenB, "new")
	a.Eval(ctx, guardedWrite, []string{text}, tokenA, "old")
}
