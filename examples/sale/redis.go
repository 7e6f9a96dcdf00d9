package main

import (
	"context"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// sellOne takes a piece off the shelf for a user who has none yet. It returns 1 when it
// was sold, 0 when none is left, and -1 when the user has one.
var sellOne = goredis.NewScript(`
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return -1 end
if tonumber(redis.call('GET', KEYS[1]) or '0') < 1 then return 0 end
redis.call('DECR', KEYS[1])
redis.call('SADD', KEYS[2], ARGV[1])
return 1`)

// counter is a stock in Redis, with those who have bought.
type counter struct {
	client *goredis.Client
	keys   []string // the stock, and the set of buyers
}

// buy runs the script: while it runs, nobody else's does.
func (c counter) buy(ctx context.Context, user int) (bool, error) {
	answer, err := sellOne.Run(ctx, c.client, c.keys, user).Int()
	return answer == 1, err
}

// asked is how many scripts the server was asked to run. What they call is not counted.
func (c counter) asked(ctx context.Context) (int, error) {
	text, err := c.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	total := 0
	for _, name := range []string{"evalsha", "eval"} {
		if _, after, ok := strings.Cut(text, "cmdstat_"+name+":calls="); ok {
			var calls int
			if _, err := fmt.Sscanf(after, "%d", &calls); err != nil {
				return 0, err
			}
			total += calls
		}
	}
	return total, nil
}

func newCounter(ctx context.Context, at servers, s sale) (c counter, err error) {
	if at.redis == "" {
		return c, errNoServer
	}
	opts, err := goredis.ParseURL(at.redis)
	if err != nil {
		return c, err
	}
	// The braces keep both keys in one slot of a Cluster.
	c = counter{goredis.NewClient(opts), []string{"{example-sale}" + at.name + ":stock", "{example-sale}" + at.name + ":buyers"}}
	if err := c.client.Del(ctx, c.keys...).Err(); err != nil {
		return c, err
	}
	if err := sellOne.Load(ctx, c.client).Err(); err != nil {
		return c, err
	}
	return c, c.client.Set(ctx, c.keys[0], s.stock, 0).Err()
}

// byScript decides and writes on the server, in one step. Nobody thinks in between.
func byScript(ctx context.Context, at servers, s sale) (*shop, error) {
	c, err := newCounter(ctx, at, s)
	if err != nil {
		return nil, err
	}
	return &shop{
		buy:   c.buy,
		left:  func(ctx context.Context) (int, error) { return c.client.Get(ctx, c.keys[0]).Int() },
		asked: c.asked,
		close: func(ctx context.Context) error {
			defer c.client.Close()
			return c.client.Del(ctx, c.keys...).Err()
		},
	}, nil
}
