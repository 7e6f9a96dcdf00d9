package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// market is what sellers and buyers share, all of it in Redis:
//
//	PREFIX:market            the items on offer with their prices, a sorted set
//	PREFIX:purse:USER        the user's money
//	PREFIX:inventory:USER    the user's items, a set
type market struct {
	redis  goredis.UniversalClient
	prefix string
	// together: a buyer reads price and purse in one request, not one after the other.
	together bool
}

func (m market) offers() string               { return m.prefix + ":market" }
func (m market) purse(user string) string     { return m.prefix + ":purse:" + user }
func (m market) inventory(user string) string { return m.prefix + ":inventory:" + user }

// offer is an item that is for sale. Its name begins with the seller's.
type offer struct {
	item  string
	price int64
}

func (o offer) seller() string {
	seller, _, _ := strings.Cut(o.item, ".")
	return seller
}

var (
	errNoOffer = errors.New("nothing is for sale that the buyer can pay")
	errGone    = errors.New("somebody else has bought it, or is about to")
)

// list puts an item of the seller's up for sale. It watches the seller's inventory
// only, so that listings get in the way of nobody but those who watch the market.
func (m market) list(ctx context.Context, seller, item string, price int64) error {
	return m.redis.Watch(ctx, func(tx *goredis.Tx) error {
		has, err := tx.SIsMember(ctx, m.inventory(seller), item).Result()
		if err != nil {
			return err
		}
		if !has {
			return fmt.Errorf("%s does not have %s", seller, item)
		}
		_, err = tx.TxPipelined(ctx, func(p goredis.Pipeliner) error {
			p.ZAdd(ctx, m.offers(), goredis.Z{Score: float64(price), Member: item})
			p.SRem(ctx, m.inventory(seller), item)
			return nil
		})
		return err
	}, m.inventory(seller))
}

// pick takes an offer at random, without any care. Without one the error is errNoOffer.
func (m market) pick(ctx context.Context) (offer, error) {
	some, err := m.redis.ZRandMemberWithScores(ctx, m.offers(), 1).Result()
	if err != nil {
		return offer{}, err
	}
	if len(some) == 0 {
		return offer{}, errNoOffer
	}
	return offer{some[0].Member.(string), int64(some[0].Score)}, nil
}

// check returns errGone unless the offer stands, and errNoOffer unless the buyer can pay.
func (m market) check(ctx context.Context, via goredis.Cmdable, buyer string, o offer) error {
	var price *goredis.FloatCmd
	var money *goredis.StringCmd
	if m.together {
		_, _ = via.Pipelined(ctx, func(p goredis.Pipeliner) error {
			price, money = p.ZScore(ctx, m.offers(), o.item), p.Get(ctx, m.purse(buyer))
			return nil // each has its own error
		})
	} else {
		price, money = via.ZScore(ctx, m.offers(), o.item), via.Get(ctx, m.purse(buyer))
	}
	now, err := price.Result()
	if errors.Is(err, goredis.Nil) || err == nil && int64(now) != o.price {
		return errGone
	}
	if err != nil {
		return err
	}
	has, err := money.Int64()
	if err == nil && has < o.price {
		return errNoOffer
	}
	return err
}

// buy is what every way does while it protects the offer, or with the keys watched.
func (m market) buy(ctx context.Context, via goredis.Cmdable, buyer string, o offer) error {
	if err := m.check(ctx, via, buyer, o); err != nil {
		return err
	}
	return m.trade(ctx, via, buyer, o)
}

// trade moves the money and the item. It does not look: who calls it has to know that
// the offer is still there.
func (m market) trade(ctx context.Context, via goredis.Cmdable, buyer string, o offer) error {
	_, err := via.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		p.ZRem(ctx, m.offers(), o.item)
		p.IncrBy(ctx, m.purse(o.seller()), o.price)
		p.DecrBy(ctx, m.purse(buyer), o.price)
		p.SAdd(ctx, m.inventory(buyer), o.item)
		return nil
	})
	return err
}

// audit counts the money and the items of all users, and returns an error unless they
// are what was brought into the market.
func (m market) audit(ctx context.Context, users []string, money int64, items int) error {
	found, err := m.redis.ZRange(ctx, m.offers(), 0, -1).Result()
	if err != nil {
		return err
	}
	var sum int64
	for _, user := range users {
		purse, err := m.redis.Get(ctx, m.purse(user)).Int64()
		if err != nil {
			return err
		}
		if purse < 0 {
			return fmt.Errorf("%s has spent more than there was: %d is left", user, purse)
		}
		sum += purse
		owned, err := m.redis.SMembers(ctx, m.inventory(user)).Result()
		if err != nil {
			return err
		}
		found = append(found, owned...)
	}
	all := len(found)
	slices.Sort(found)
	switch once := len(slices.Compact(found)); {
	case sum != money:
		return fmt.Errorf("the money is %d, and was %d", sum, money)
	case all != once:
		return fmt.Errorf("%d items are in two places", all-once)
	case all != items:
		return fmt.Errorf("there are %d items, and were %d", all, items)
	}
	return nil
}
