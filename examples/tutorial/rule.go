package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/conformance"
)

// tryRule runs the rule that is named for the step's mistake on the flawed lock that has it.
func tryRule(ctx context.Context, s step, server string) (_ string, err error) {
	l := s.flawedLock()
	opts, err := goredis.ParseURL(server)
	if err != nil {
		return "", err
	}
	opts.PoolSize, opts.ContextTimeoutEnabled = 100, true
	var clients []*goredis.Client
	for db := range nodes {
		o := *opts
		o.DB = db
		clients = append(clients, goredis.NewClient(&o))
	}
	prefix := "tutorial/" + rand.Text() + "/"
	defer func() {
		for _, c := range clients {
			err = errors.Join(err, forget(context.WithoutCancel(ctx), c, "*:*"+prefix+"*"), c.Close())
		}
	}()
	var on any = clients[0]
	budget := 4 * time.Second
	if s.file == "half_is_enough.go" {
		on, budget = clients, time.Minute // its race is met sooner or later, and the run then ends
	}
	cfg, err := l.Config(ctx, on)
	if err != nil {
		return "", err
	}
	cfg.KeyPrefix, cfg.Only, cfg.Budget = prefix, []string{l.Rule}, budget
	report, err := conformance.Check(ctx, cfg)
	if err != nil {
		return "", err
	}
	r, _ := report.Result(l.Rule)
	first, _, _ := strings.Cut(r.Evidence, "\n")
	return fmt.Sprintf("%s: %s\n%s", r.Rule, r.Verdict, first), nil
}

// forget removes what a run has left.
func forget(ctx context.Context, c *goredis.Client, pattern string) error {
	keys := c.Scan(ctx, 0, pattern, 1000).Iterator()
	for keys.Next(ctx) {
		if err := c.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
