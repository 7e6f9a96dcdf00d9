package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	purse     = 1_000_000_000 // what each user has at first
	batch     = 500           // how many items a seller makes at a time
	nextTry   = time.Millisecond
	priceFrom = 1
	priceTo   = 100
)

// result is what came of one way with one crowd.
type result struct {
	way             string
	sellers, buyers int
	listed, bought  int
	retries         int
	waited          time.Duration // for all purchases
}

// meanWait is how long a purchase took, from the first try.
func (r result) meanWait() time.Duration {
	if r.bought == 0 {
		return 0
	}
	return r.waited / time.Duration(r.bought)
}

// trading lets sellers list and buyers buy for some time, and audits the market after.
func trading(ctx context.Context, m market, lockURL string, w way, sellers, buyers int, length time.Duration) (r result, err error) {
	// The braces keep all keys in one slot of a Cluster.
	m.prefix = "{marketplace-" + rand.Text() + "}"
	r = result{way: w.name, sellers: sellers, buyers: buyers}
	var users, selling []string
	for i := range sellers {
		selling = append(selling, "seller"+strconv.Itoa(i))
	}
	users = append(users, selling...)
	buy := map[string]buyFunc{}
	for i := range buyers {
		buyer := "buyer" + strconv.Itoa(i)
		one, leave, err := w.open(ctx, m, lockURL, buyer)
		if err != nil {
			return r, err
		}
		defer leave()
		users, buy[buyer] = append(users, buyer), one
	}
	defer func() { err = errors.Join(err, m.clear(context.WithoutCancel(ctx), users)) }()
	for _, user := range users {
		if err := m.redis.Set(ctx, m.purse(user), purse, 0).Err(); err != nil {
			return r, err
		}
	}

	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var made atomic.Int64
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	start := func(one func() (result, error)) {
		wg.Go(func() {
			part, err := one()
			mu.Lock()
			defer mu.Unlock()
			r.listed += part.listed
			r.bought += part.bought
			r.retries += part.retries
			r.waited += part.waited
			if err != nil {
				errs = append(errs, err)
				cancel()
			}
		})
	}
	for _, seller := range selling {
		start(func() (result, error) { return m.sell(ctx, seller, &made) })
	}
	for _, one := range buy {
		start(func() (result, error) { return m.shop(ctx, one) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return r, err
	}
	ctx = context.WithoutCancel(ctx)
	if err := m.audit(ctx, users, purse*int64(len(users)), int(made.Load())); err != nil {
		return r, fmt.Errorf("%s, %d x %d: %w", w.name, sellers, buyers, err)
	}
	return r, nil
}

// sell makes items and lists them until ctx ends. Between two steps it looks at ctx;
// none is cut short, so that it is known what was done.
func (m market) sell(ctx context.Context, seller string, made *atomic.Int64) (r result, err error) {
	whole := context.WithoutCancel(ctx)
	for n := 0; ; {
		items := make([]any, batch)
		for i := range items {
			items[i] = seller + "." + strconv.Itoa(n)
			n++
		}
		if err := m.redis.SAdd(whole, m.inventory(seller), items...).Err(); err != nil {
			return r, err
		}
		made.Add(batch)
		for _, item := range items {
			if ctx.Err() != nil {
				return r, nil //nolint:nilerr // the time is over
			}
			if err := m.list(whole, seller, item.(string), priceFrom+mathrand.Int64N(priceTo-priceFrom+1)); err != nil {
				return r, err
			}
			r.listed++
		}
	}
}

// shop buys until ctx ends.
func (m market) shop(ctx context.Context, buy buyFunc) (r result, err error) {
	begun := time.Now()
	for ctx.Err() == nil {
		o, err := m.pick(context.WithoutCancel(ctx))
		if err == nil {
			err = buy(ctx, o)
		}
		switch {
		case err == nil:
			r.bought++
			r.waited += time.Since(begun)
			begun = time.Now()
		case errors.Is(err, errGone):
			r.retries++
		case errors.Is(err, errNoOffer):
			time.Sleep(nextTry)
			begun = time.Now() // there was nothing to wait for
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		default:
			return r, err
		}
	}
	return r, nil
}

// clear removes what the market has in Redis.
func (m market) clear(ctx context.Context, users []string) error {
	keys := []string{m.offers(), m.prefix + ":lock"}
	for _, user := range users {
		keys = append(keys, m.purse(user), m.inventory(user))
	}
	return m.redis.Unlink(ctx, keys...).Err()
}
