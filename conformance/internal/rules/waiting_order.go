package rules

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// inOrder has waiters arrive one after the other, each with time to take its
// place, and checks that they are served in that order. On a busy machine a place
// may take longer; then it is repeated with more time, and only an order that is
// wrong each time is a broken rule.
func inOrder(e *engine.Env, name string, line func(key string, gap time.Duration) (order []int), gap time.Duration) {
	var order []int
	for round := range 3 {
		key := e.Key("%s-%d", name, round)
		if order = line(key, gap); slices.IsSorted(order) {
			return
		}
		gap *= 3
	}
	e.Latef(e.Key("%s-2", name), "the waiters, numbered by their arrival, were served in the order %v (%s)", order, name)
}

// served is the order in which waiters get the key.
func served(e *engine.Env, key string, holder *engine.Client, pick func(i int) *engine.Client, n int, gap time.Duration) (order []int) {
	h := holder.MustTry(key)
	waiters, asks := make([]*engine.Acquiring, n), asked(e, holder)
	timed, cancel := context.WithTimeout(e.Ctx, time.Hour)
	defer cancel()
	for i := range waiters {
		ctx := e.Ctx
		if i%3 == 2 { // it changes nothing
			ctx = timed
		}
		ttl := e.Long
		if i%4 == 3 {
			ttl = engine.DefaultTTL
		}
		waiters[i] = pick(i).AcquiringOn(ctx, key, ttl, asks[i%len(asks)]...)
		<-waiters[i].Begun
		e.Pause(gap)
	}
	if n >= moreThanADigit { // who leaves changes no order, in the middle or at the head
		for _, i := range []int{7, 3, 0} {
			waiters[i].Cancel()
			if !e.Within(e.Slack(), waiters[i].Done) {
				e.OverdueFatalf(key, "a cancelled waiter had not returned after %s", e.Slack())
			}
			if waiters[i].Err == nil {
				e.Fatalf(key, "a waiter was granted a key that was held")
			}
			waiters = slices.Delete(waiters, i, i+1)
		}
	}
	h.MustRelease()
	if pick(0) == pick(1) { // who comes now is behind all of them
		late := pick(0).Acquiring(key)
		<-late.Begun
		waiters = append(waiters, late)
	}
	return inTurn(e, key, waiters)
}

// lineUp has callers of one Locker wait, one after the other.
func lineUp(e *engine.Env, key string, c *engine.Client, n int, gap time.Duration) []*engine.Acquiring {
	waiters := make([]*engine.Acquiring, n)
	for i := range waiters {
		waiters[i] = c.Acquiring(key)
		<-waiters[i].Begun
		e.Pause(gap)
	}
	return waiters
}

// inTurn is the order in which waiters get a key that has become free.
func inTurn(e *engine.Env, key string, waiters []*engine.Acquiring) (order []int) {
	n := len(waiters)
	var mu sync.Mutex
	e.Each(n, func(i int) {
		got := waiters[i].MustGet(e, key, e.WaitBound()+time.Duration(n)*2*time.Second, "the key was released")
		mu.Lock()
		order = append(order, i)
		mu.Unlock()
		got.MustRelease()
	})
	return order
}

// asked is what waiters ask for, one after the other. It changes nothing about whose turn it
// is.
func asked(e *engine.Env, c *engine.Client) [][]lock.Option {
	all := [][]lock.Option{nil}
	if e.Claimed.HolderDetails {
		all = append(all, []lock.Option{lock.WithLabel("a waiter")})
	}
	if !e.Fixed {
		all = append(all, []lock.Option{lock.WithTTL(e.Fit(e.Long / 2))})
	}
	for _, k := range optionKinds(e, c) {
		if !k.owned {
			all = append(all, k.opts)
		}
	}
	return all
}

// moreThanADigit is how many wait where the order is asked for: numbers that are sorted as
// text are in order up to nine.
const moreThanADigit = 12

// moreThanABatch is how many of one Locker wait for it: more than it may hand over to in one
// go.
const moreThanABatch = 36

func waiterOrderLocal(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	e.Each(2, func(i int) {
		holder := []*engine.Client{a, b}[i]
		n := []int{moreThanADigit, moreThanABatch}[i]
		inOrder(e, holder.Who, func(key string, gap time.Duration) []int {
			return served(e, key, holder, func(int) *engine.Client { return b }, n, gap)
		}, 30*time.Millisecond)
	})
	for _, holder := range []*engine.Client{a, b} {
		inOrder(e, "overtaken by a try, behind "+holder.Who, func(key string, gap time.Duration) []int { return servedAfterTry(e, key, holder, b, gap) }, 30*time.Millisecond)
	}
	if e.OpenBackend != nil && e.Virtual() {
		for _, n := range []int{1, 3, math.MaxInt} {
			inOrder(e, fmt.Sprintf("through %d failures", n), func(key string, gap time.Duration) []int { return servedThroughFailures(e, key, a, n, gap) }, 30*time.Millisecond)
		}
	}
	if e.Claimed.WithoutRenewal {
		inOrder(e, "behind a lease that ran out", func(key string, gap time.Duration) []int { return servedAfterLoss(e, key, a, b, gap) }, 10*time.Millisecond)
	}
}

// servedAfterTry is the order in which waiters of one Locker get a key that one of its tries has
// got before them, which changes nothing about their turns. The try may be too late, which in
// virtual time costs little.
func servedAfterTry(e *engine.Env, key string, holder, b *engine.Client, gap time.Duration) (order []int) {
	tries := 1
	if e.Virtual() {
		tries = 10
	}
	for n := range tries {
		var overtook bool
		if order, overtook = servedBesideTry(e, fmt.Sprintf("%s-%d", key, n), holder, b, gap); overtook || !slices.IsSorted(order) {
			break
		}
	}
	return order
}

// servedThroughFailures is the order in which waiters of one Locker get a key, of whose tries some
// have failed, which says nothing of their turns.
func servedThroughFailures(e *engine.Env, key string, holder *engine.Client, failures int, gap time.Duration) []int {
	b, server := e.Faulty()
	h := holder.MustTry(key)
	waiters := lineUp(e, key, b, 4, gap)
	server.Next(failures, faultlock.FailBefore(), faultlock.OpTry)
	e.Pause(e.WaitBound())
	server.Heal()
	h.MustRelease()
	return inTurn(e, key, waiters)
}

func servedBesideTry(e *engine.Env, key string, holder, b *engine.Client, gap time.Duration) (order []int, overtook bool) {
	h := holder.MustTry(key)
	waiters := lineUp(e, key, b, 4, gap)
	h.MustRelease()
	got, err := b.Try(key)
	if err == nil {
		e.Pause(gap)
		got.MustRelease()
	}
	return inTurn(e, key, waiters), err == nil
}

// servedAfterLoss is the order in which waiters of one Locker get a key whose holder has lost
// it.
func servedAfterLoss(e *engine.Env, key string, a, b *engine.Client, gap time.Duration) []int {
	const n = 6
	h := a.MustTryFor(key, e.Fit(max(e.TTL, 3*n*gap)), lock.WithoutRenewal())
	h.Lapses()
	waiters := lineUp(e, key, b, n, gap)
	if !time.Now().Before(h.Until()) {
		return nil // some came when it was free
	}
	e.Pause(time.Until(h.Until()) + e.Claimed.TakeoverLag)
	return inTurn(e, key, waiters)
}

func fairOrder(e *engine.Env) {
	n := moreThanADigit
	if !e.Claimed.Fair {
		n = 5 // it is tried for the report only
	}
	clients := e.Lockers(1 + n)
	inOrder(e, "a", func(key string, gap time.Duration) []int {
		return served(e, key, clients[0], func(i int) *engine.Client { return clients[1+i] }, n, gap)
	}, 60*time.Millisecond)
	if e.Claimed.Fair {
		inOrder(e, "beside newcomers at the release", func(key string, gap time.Duration) []int {
			return servedBesideNewcomers(e, key, clients[0], clients[1], clients[2:5], gap)
		}, 60*time.Millisecond)
	}
}

// servedBesideNewcomers is the order of one who waits and of others who come while the holder
// gives the key back: the first order of many that is wrong. A release of several steps lets
// them in between.
func servedBesideNewcomers(e *engine.Env, key string, holder, waiter *engine.Client, newcomers []*engine.Client, gap time.Duration) []int {
	orders := make([][]int, 8)
	e.Each(len(orders), func(n int) {
		key := fmt.Sprintf("%s-%d", key, n)
		h := holder.MustTry(key)
		first := waiter.Acquiring(key)
		<-first.Begun
		e.Pause(gap)
		all := make([]*engine.Acquiring, 1+len(newcomers))
		all[0] = first
		e.Each(len(all), func(i int) {
			e.Pause(e.Randomly(4 * time.Millisecond))
			if i == 0 {
				h.MustRelease()
				return
			}
			all[i] = newcomers[i-1].Acquiring(key)
		})
		if orders[n] = inTurn(e, key, all); orders[n][0] == 0 {
			orders[n] = nil // the newcomers have no order
		}
	})
	for _, order := range orders {
		if order != nil {
			return order
		}
	}
	return nil
}
