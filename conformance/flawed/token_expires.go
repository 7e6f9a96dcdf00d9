package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z89 = Lock{
	ID: "Z89", Title: "a token counter that expires when nobody uses it",
	Summary: "After a quiet time the tokens begin at 1 again.",
	Seen:    "Counters with an expiry; redisson/redisson#6510 asks for it.",
	Instead: "Keep the counter, or take the server's clock as its floor.",
	File:    "token_expires.go", Over: Redis,
	Rule: "TokenSurvivesIdling",
	Also: []string{"TokenSurvivesLastClose"},
	On:   onRedis(func(s single) backend.Backend { return tokenExpires{fenced{s}} }),
}

// counterLife is short here. In earnest it is a day, and the quiet time a weekend.
const counterLife = 2500 * time.Millisecond

// tokenExpires gives the counter an expiry with each grant, longer than any lease.
//
//	A, Friday: acquires, token 41; its machine is suspended
//	the lease runs out, and a day later the counter does
//	B, Monday: acquires, token 1, and writes to a store that has seen 41: refused
//	A, Monday: wakes up and writes with its token 41: accepted
//
// No test that lasts seconds sees it. Caught by TokenSurvivesIdling, if the quiet time
// of the rule is as long as that of the counter.
//
// Instead: a counter without an expiry, or one that begins at the time of day.
type tokenExpires struct{ fenced }

// Try implements backend.Backend.
func (t tokenExpires) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	g, err := t.fenced.Try(ctx, req)
	if err == nil {
		err = t.rdb.PExpire(context.WithoutCancel(ctx), t.counter(req.Key), counterLife).Err()
	}
	return g, err
}
