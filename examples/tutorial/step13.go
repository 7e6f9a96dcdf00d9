package main

import (
	"context"
	"time"

	"github.com/mortiselock/lock"
	_ "github.com/mortiselock/lock/redis"
)

func step13(s *scene) {
	locker := must(lock.Open(ctx, s.server, nil))
	defer locker.Close()
	// Without renewal, as if a's process stood still.
	a := must(locker.Acquire(ctx, job, lock.WithoutRenewal(), lock.WithTTL(time.Second)))
	b := must(locker.Acquire(ctx, job)) // waits until a's time is over
	defer b.Release(ctx)
	s.say("a is told:", context.Cause(a.Context()))
	write := func(l lock.Lease, what string) any {
		return must(s.quiet.Eval(ctx, guardedWrite, []string{text}, l.Token(), what).Result())
	}
	s.say("b's write:", write(b, "new"))
	s.say("a's write:", write(a, "old"))
}
