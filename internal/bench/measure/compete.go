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
// count.
type Contention struct {
	Wall     time.Duration
	Used     time.Duration // in which somebody did what the key is for
	Grants   int
	Waits    []float64 // in seconds
	Commands float64
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
	return c.run(ctx, takers)
}

func (c Contest) run(ctx context.Context, takers []Taker) (Contention, error) {
	var (
		r        Contention
		mu       sync.Mutex
		wg       sync.WaitGroup
		fault    error
		deadline time.Time
	)
	begin := make(chan struct{})
	for _, take := range takers {
		wg.Go(func() {
			<-begin
			for time.Now().Before(deadline) {
				asked := time.Now()
				giveBack, err := take(ctx)
				granted := time.Now()
				if err == nil {
					time.Sleep(c.HeldFor)
					used := time.Since(granted)
					err = giveBack()
					mu.Lock()
					if granted.Before(deadline) {
						r.Grants++
						r.Used += used
						r.Waits = append(r.Waits, granted.Sub(asked).Seconds())
					}
					mu.Unlock()
				}
				if err != nil {
					mu.Lock()
					fault = errors.Join(fault, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	before, fault1 := c.commands(ctx)
	start := time.Now()
	deadline = start.Add(c.Length)
	close(begin)
	time.Sleep(time.Until(deadline))
	wall := time.Since(start)
	after, fault2 := c.commands(ctx)
	wg.Wait()
	r.Wall, r.Commands = wall, after-before
	return r, errors.Join(fault, fault1, fault2)
}

func (c Contest) commands(ctx context.Context) (float64, error) {
	if c.Commands == nil {
		return 0, nil
	}
	return c.Commands(ctx)
}
