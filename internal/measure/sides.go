package measure

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Length is how long a side has its turn in a round, where nothing else is said.
const Length = 700 * time.Millisecond

// A Lease is what is measured of one, such as a lock.Lease.
type Lease interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// A Taker takes a lock and returns how to give it back.
type Taker func(ctx context.Context) (giveBack func() error, err error)

// Taking is a Taker of a Locker's key. Acquire is one of the Locker's methods, Acquire
// or TryAcquire.
func Taking[L Lease, Option any](acquire func(context.Context, string, ...Option) (L, error), key string, opts ...Option) Taker {
	return func(ctx context.Context) (func() error, error) {
		lease, err := acquire(ctx, key, opts...)
		if err != nil {
			return nil, fmt.Errorf("acquiring: %w", err)
		}
		return func() error {
			if err := lease.Release(ctx); err != nil {
				return fmt.Errorf("releasing: %w", err)
			}
			return nil
		}, nil
	}
}

// A Side is one of several ways to do the same thing.
type Side struct {
	Name    string
	Take    Taker
	Figures []float64    // one for each round
	Goal    Goal         // for the median of the figures
	Against []Comparison // without any, a side is compared with the first
}

// A Comparison is with another side, round by round.
type Comparison struct {
	To *Side
	// By is the name of To in the table; empty, its own.
	By   string
	Goal Goal // for the median of the ratios
}

// A Goal is what was aimed at. A bound that is zero is none.
type Goal struct{ AtLeast, AtMost float64 }

// String says what is aimed at; it is empty without a bound.
func (g Goal) String() string {
	switch {
	case g.AtLeast != 0 && g.AtMost != 0:
		return fmt.Sprintf("aim %g to %g", g.AtLeast, g.AtMost)
	case g.AtLeast != 0:
		return fmt.Sprintf("aim at least %g", g.AtLeast)
	case g.AtMost != 0:
		return fmt.Sprintf("aim at most %g", g.AtMost)
	default:
		return ""
	}
}

// Verdict is the goal, and whether x reaches it, for the end of a line. It is empty
// without a bound.
func (g Goal) Verdict(x float64) string {
	switch {
	case g == Goal{}:
		return ""
	case g.AtLeast != 0 && x < g.AtLeast:
		return fmt.Sprintf("  [%s: below]", g)
	case g.AtMost != 0 && x > g.AtMost:
		return fmt.Sprintf("  [%s: above]", g)
	default:
		return fmt.Sprintf("  [%s: ok]", g)
	}
}

// Frozen is the same side with one of its nodes frozen, in rounds of their own. The
// aim is to lose no more than a fifth by it.
func Frozen(healthy *Side) *Side {
	return &Side{
		Name: healthy.Name + ", a node frozen", Take: healthy.Take,
		Against: []Comparison{{To: healthy, By: "all well", Goal: Goal{AtLeast: 0.8}}},
	}
}

// Rounds calls round once to warm up, with counted false, and then as often as said.
func Rounds(rounds int, round func(counted bool) error) error {
	for i := -1; i < rounds; i++ {
		if err := round(i >= 0); err != nil {
			return err
		}
	}
	return nil
}

// turn is how long a side has its turn before the next one has its own. A disk or a
// server that is slow for a moment then meets all sides, and not the one whose round
// it is.
const turn = 5 * time.Millisecond

// SideBySide lets one goroutine take and give back for a while on each side in every
// round, in many short turns, in another order in every cycle of them: what a side
// leaves behind for the client or the server to clean up then slows each of the others.
// The figures are pairs per second.
func SideBySide(ctx context.Context, rounds int, length time.Duration, sides ...*Side) error {
	return Rounds(rounds, func(counted bool) error {
		pairs, took := make([]int, len(sides)), make([]time.Duration, len(sides))
		for left := len(sides); left > 0; {
			for _, i := range rand.Perm(len(sides)) {
				if took[i] >= length {
					continue
				}
				n, d, err := sides[i].turn(ctx, min(turn, length-took[i]))
				if err != nil {
					return fmt.Errorf("%s: %w", sides[i].Name, err)
				}
				pairs[i] += n
				if took[i] += d; took[i] >= length {
					left--
				}
			}
		}
		if counted {
			for i, s := range sides {
				s.Figures = append(s.Figures, float64(pairs[i])/took[i].Seconds())
			}
		}
		return nil
	})
}

// turn takes and gives back until the time is over, and returns how often, and for
// how long.
func (s *Side) turn(ctx context.Context, length time.Duration) (pairs int, took time.Duration, err error) {
	for start := time.Now(); took < length; took = time.Since(start) {
		if err := pair(ctx, s.Take); err != nil {
			return pairs, took, err
		}
		pairs++
	}
	return pairs, took, nil
}

// PairByPair lets one goroutine take and give back on each side in turn, a pair at a
// time and in another order each time, for the length of a round times the number of sides. The figures are pairs
// per second at the pace of the median pair: with a disk behind them, a few pairs take
// many times as long as the others, whoever is at it.
func PairByPair(ctx context.Context, rounds int, length time.Duration, sides ...*Side) error {
	return Rounds(rounds, func(counted bool) error {
		took := make([][]float64, len(sides))
		end := time.Now().Add(length * time.Duration(len(sides)))
		for took[0] == nil || time.Now().Before(end) {
			for _, i := range rand.Perm(len(sides)) {
				start := time.Now()
				if _, _, err := sides[i].turn(ctx, 1); err != nil {
					return fmt.Errorf("%s: %w", sides[i].Name, err)
				}
				took[i] = append(took[i], time.Since(start).Seconds())
			}
		}
		if counted {
			for i, s := range sides {
				s.Figures = append(s.Figures, 1/Median(took[i]))
			}
		}
		return nil
	})
}
