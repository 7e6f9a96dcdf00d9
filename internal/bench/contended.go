package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/bench/measure"
	redislock "github.com/mortiselock/lock/redis"
)

// contended lets several Lockers with several goroutines each compete for one key
// that is held for a millisecond at a time, and measures for what part of the time
// the key is in use and how long the waits are.
func (b *bench) contended() error {
	if err := b.contendedAs(false); err != nil {
		return err
	}
	fmt.Println("  with a fair queue:")
	return b.contendedAs(true)
}

func (b *bench) contendedAs(fair bool) error {
	admin := b.client()
	defer admin.Close()
	contest := measure.Contest{
		Clients: 4, Goroutines: 8, HeldFor: time.Millisecond, Length: 3 * time.Second,
		Commands: func(ctx context.Context) (float64, error) { return commandCount(ctx, admin) },
	}
	ours := &measure.Contender{Name: "Locker.Acquire + Release", Open: func() (measure.Taker, func(), error) {
		client := b.client()
		locker, err := redislock.New(b.ctx, client, &redislock.Options{Fair: fair})
		if err != nil {
			_ = client.Close()
			return nil, nil, err
		}
		return measure.Taking(locker.Acquire, "contended"), func() { _ = locker.Close(); _ = client.Close() }, nil
	}}
	if err := contest.SideBySide(b.ctx, b.rounds, ours); err != nil {
		return err
	}
	fmt.Printf("  %s\n", contest)
	all := contest.Clients * contest.Goroutines
	wait := func(q float64) func(measure.Contention) float64 {
		return func(c measure.Contention) float64 { return c.Wait(q, all) }
	}
	// Without a queue a hand-over costs something for each Locker; with one, the
	// same whatever waits.
	var longest, commands measure.Goal
	if fair {
		longest.AtMost = 2
	} else {
		commands.AtMost = float64(2 + contest.Clients)
	}
	for _, line := range []struct {
		name, format string
		figure       func(measure.Contention) float64
		goal         measure.Goal
	}{
		{"in use", "%.2f of the time", measure.Contention.InUse, measure.Goal{AtLeast: 0.85}},
		{"wait, median", "%.2f fair shares", wait(0.5), measure.Goal{}},
		{"wait, p99", "%.2f fair shares", wait(0.99), measure.Goal{}},
		{"wait, longest", "%.2f fair shares", wait(1), longest},
		{"cost", "%.1f Redis commands per hand-over", measure.Contention.CommandsPerGrant, commands},
	} {
		s := ours.Side(line.figure)
		lo, hi := measure.Spread(s.Figures)
		s.Name, s.Goal = fmt.Sprintf("  %-14s", line.name), line.goal
		measure.Print(os.Stdout, line.format+fmt.Sprintf(" (%.2f to %.2f)", lo, hi), s)
	}
	return nil
}

// commandCount is how many commands the server has processed, those inside of
// scripts not counted.
func commandCount(ctx context.Context, c *goredis.Client) (float64, error) {
	text, err := c.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, name := range []string{"evalsha", "eval", "subscribe", "unsubscribe", "ping"} {
		var calls float64
		if _, after, ok := strings.Cut(text, "cmdstat_"+name+":calls="); ok {
			_, _ = fmt.Sscanf(after, "%f", &calls)
		}
		total += calls
	}
	return total, nil
}
