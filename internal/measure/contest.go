package measure

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A Contest lets goroutines compete for one key.
type Contest struct {
	HeldFor time.Duration
	// Gather is for how long they compete before anything counts, so that all of them wait.
	Gather time.Duration
	Length time.Duration
	// CutOff ends the contexts of those who still wait when the Length is over. Otherwise
	// everybody's wait is awaited.
	CutOff bool
	// Commands is how many commands the server has been sent so far; nil, they are
	// not counted.
	Commands func(ctx context.Context) (float64, error)
}

// Contention is what was seen in one round. Only holds that began within its Length
// count, and of their use what was within it.
type Contention struct {
	Wall     time.Duration
	Used     time.Duration // in which somebody did what the key is for
	Grants   int
	Waits    []float64 // in seconds
	Longest  float64   // wait in seconds, of those too that ended without the key
	Commands float64
}

// Add adds what was seen in another round of the same contest.
func (c *Contention) Add(round Contention) {
	c.Wall += round.Wall
	c.Used += round.Used
	c.Grants += round.Grants
	c.Waits = append(c.Waits, round.Waits...)
	c.Longest = max(c.Longest, round.Longest)
	c.Commands += round.Commands
}

// InUse is the part of the time for which the key was in use.
func (c Contention) InUse() float64 { return c.Used.Seconds() / c.Wall.Seconds() }

// GrantsPerSecond is how often the key was taken.
func (c Contention) GrantsPerSecond() float64 { return float64(c.Grants) / c.Wall.Seconds() }

// CommandsPerGrant is what a hand-over costs the server.
func (c Contention) CommandsPerGrant() float64 { return c.Commands / float64(max(c.Grants, 1)) }

// Wait is a quantile of the waits, in fair shares.
func (c Contention) Wait(q float64, contenders int) float64 {
	return Quantile(c.Waits, q) / c.FairShare(contenders)
}

// FairShare is the wait in seconds of somebody whose turn comes after everybody else's.
func (c Contention) FairShare(contenders int) float64 {
	return c.Wall.Seconds() / float64(max(c.Grants, 1)) * float64(contenders)
}

// Run makes one round, with a goroutine for each taker. The first error ends it.
func (c Contest) Run(ctx context.Context, takers []Taker) (Contention, error) {
	w := newWorkers(ctx)
	cut, end := context.WithCancel(context.Background())
	defer end()
	begin := time.Now().Add(c.Gather)
	deadline := begin.Add(c.Length)
	r := round{Contention: Contention{Wall: c.Length}, heldFor: c.HeldFor, begin: begin, deadline: deadline}
	for _, take := range takers {
		w.start(func(ctx context.Context) error {
			for time.Now().Before(deadline) && ctx.Err() == nil {
				if err := r.hold(ctx, cut, take); err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.until(begin)
	before, err := c.commands(ctx)
	w.until(deadline)
	after, again := c.commands(ctx)
	if c.CutOff {
		end()
	}
	err = errors.Join(w.wait(), err, again)
	r.Commands = after - before
	return r.Contention, err
}

// round is what the goroutines of a contest have seen together.
type round struct {
	mu sync.Mutex
	Contention
	heldFor         time.Duration
	begin, deadline time.Time
}

// hold waits for the key and holds it, once.
func (r *round) hold(ctx, cut context.Context, take Taker) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(cut, cancel)
	asked := time.Now()
	giveBack, err := take(ctx)
	stop()
	if err != nil {
		if cut.Err() == nil {
			return err
		}
		r.waited(asked, r.deadline)
		return nil
	}
	granted := time.Now()
	r.waited(asked, granted)
	time.Sleep(r.heldFor)
	released := time.Now()
	if err := giveBack(); err != nil && cut.Err() == nil {
		return err
	}
	if granted.Before(r.deadline) && !granted.Before(r.begin) {
		r.mu.Lock()
		r.Grants++
		r.Used += min(released.Sub(granted), r.deadline.Sub(granted))
		r.Waits = append(r.Waits, granted.Sub(asked).Seconds())
		r.mu.Unlock()
	}
	return nil
}

func (r *round) waited(from, until time.Time) {
	r.mu.Lock()
	r.Longest = max(r.Longest, until.Sub(from).Seconds())
	r.mu.Unlock()
}

func (c Contest) commands(ctx context.Context) (float64, error) {
	if c.Commands == nil {
		return 0, nil
	}
	return c.Commands(ctx)
}

// Quantile is the figure below which the part q of all figures is.
func Quantile(xs []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	if len(s) == 0 {
		return 0
	}
	return s[min(int(q*float64(len(s))), len(s)-1)]
}
