package measure

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Contest lets goroutines compete for one key.
type Contest struct {
	Clients    int
	Goroutines int // of each client
	HeldFor    time.Duration
	Length     time.Duration
	// Commands is how many commands the server has been sent so far; nil, they are
	// not counted.
	Commands func(ctx context.Context) (float64, error)
}

// String is the size of the contest, for the line above a table.
func (c Contest) String() string {
	return fmt.Sprintf("%d clients x %d, held %s", c.Clients, c.Goroutines, c.HeldFor)
}

// A Contender is one of several ways to compete for a key.
type Contender struct {
	Name string
	// Open makes a client, for one round, and returns how its goroutines take the
	// key, and how to close it.
	Open func() (Taker, func(), error)
	// Takers, if Open is nil, are used in every round: one for each goroutine.
	Takers  []Taker
	Results []Contention // one for each round
}

// Side is a line of a table: one figure of each round.
func (c *Contender) Side(figure func(Contention) float64) *Side {
	s := &Side{Name: c.Name}
	for _, r := range c.Results {
		s.Figures = append(s.Figures, figure(r))
	}
	return s
}

// Contention is what was seen in one round. Only holds that began before its end
// count, and of their use what was before it.
type Contention struct {
	Wall     time.Duration
	Used     time.Duration // in which somebody did what the key is for
	Grants   int
	Waits    []float64 // in seconds
	Commands float64
}

// Add adds what was seen in another round of the same contest.
func (c *Contention) Add(round Contention) {
	c.Wall += round.Wall
	c.Used += round.Used
	c.Grants += round.Grants
	c.Waits = append(c.Waits, round.Waits...)
	c.Commands += round.Commands
}

// InUse is the part of the time for which the key was in use.
func (c Contention) InUse() float64 { return c.Used.Seconds() / c.Wall.Seconds() }

// GrantsPerSecond is how often the key was taken.
func (c Contention) GrantsPerSecond() float64 { return float64(c.Grants) / c.Wall.Seconds() }

// CommandsPerGrant is what a hand-over costs the server.
func (c Contention) CommandsPerGrant() float64 { return c.Commands / float64(max(c.Grants, 1)) }

// Wait is a quantile of the waits, in fair shares: the fair share of a waiter is its
// turn after everybody else's.
func (c Contention) Wait(q float64, contenders int) float64 {
	share := c.Wall.Seconds() / float64(max(c.Grants, 1)) * float64(contenders)
	return Quantile(c.Waits, q) / share
}

// SideBySide lets each contender have its turn in every round.
func (c Contest) SideBySide(ctx context.Context, rounds int, contenders ...*Contender) error {
	return Rounds(rounds, func(counted bool) error {
		for _, one := range contenders {
			r, err := c.round(ctx, one)
			if err != nil {
				return fmt.Errorf("%s: %w", one.Name, err)
			}
			if counted {
				one.Results = append(one.Results, r)
			}
		}
		return nil
	})
}

func (c Contest) round(ctx context.Context, one *Contender) (Contention, error) {
	takers := one.Takers
	if one.Open != nil {
		takers = nil
		for range c.Clients {
			take, closeIt, err := one.Open()
			if err != nil {
				return Contention{}, err
			}
			defer closeIt()
			for range c.Goroutines {
				takers = append(takers, take)
			}
		}
	}
	return c.Run(ctx, takers)
}

// Run makes one round, with a goroutine for each taker. The first error ends it.
func (c Contest) Run(ctx context.Context, takers []Taker) (Contention, error) {
	var mu sync.Mutex
	r := Contention{Wall: c.Length}
	before, err := c.commands(ctx)
	if err != nil {
		return r, err
	}
	w := newWorkers(ctx)
	deadline := time.Now().Add(c.Length)
	for _, take := range takers {
		w.start(func(ctx context.Context) error {
			for time.Now().Before(deadline) && ctx.Err() == nil {
				asked := time.Now()
				giveBack, err := take(ctx)
				if err != nil {
					return err
				}
				granted := time.Now()
				time.Sleep(c.HeldFor)
				released := time.Now()
				if err := giveBack(); err != nil {
					return err
				}
				if granted.Before(deadline) {
					mu.Lock()
					r.Grants++
					r.Used += min(released.Sub(granted), deadline.Sub(granted))
					r.Waits = append(r.Waits, granted.Sub(asked).Seconds())
					mu.Unlock()
				}
			}
			return nil
		})
	}
	time.Sleep(time.Until(deadline))
	after, err := c.commands(ctx)
	r.Commands = after - before
	return r, errors.Join(w.wait(), err)
}

func (c Contest) commands(ctx context.Context) (float64, error) {
	if c.Commands == nil {
		return 0, nil
	}
	return c.Commands(ctx)
}
