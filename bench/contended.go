package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/internal/measure"
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
	bare := &measure.Contender{Name: "one SET"}
	clients := make([]*goredis.Client, contest.Clients)
	for i := range clients {
		clients[i] = b.client()
		defer clients[i].Close()
	}
	bare.Takers = oneSet(clients, contest.Goroutines)
	if err := contest.SideBySide(b.ctx, b.rounds, bare, ours); err != nil {
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
	// On a slow machine the goal may be more than a round trip leaves.
	most, used := bare.Side(measure.Contention.InUse), ours.Side(measure.Contention.InUse)
	fmt.Printf("    a SET for each hand-over, and nothing else, leaves the key in use %.2f of the time; ratio to that %.2f\n",
		measure.Median(most.Figures), measure.Median(measure.Ratios(used.Figures, most.Figures)))
	return nil
}

// oneSet is no lock: one goroutine after the other has its turn, of all clients, and
// writes a value at its end. A hand-over that is written to the server can't be faster.
func oneSet(clients []*goredis.Client, goroutines int) []measure.Taker {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	var takers []measure.Taker
	for _, client := range clients {
		for range goroutines {
			takers = append(takers, func(ctx context.Context) (func() error, error) {
				<-turn
				return func() error {
					defer func() { turn <- struct{}{} }()
					return client.Set(ctx, "bare", "", 15*time.Second).Err()
				}, nil
			})
		}
	}
	return takers
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
