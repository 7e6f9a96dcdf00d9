package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/mortiselock/lock"
)

// Length is how long a side has its turn in a round, where nothing else is said.
const Length = 700 * time.Millisecond

// A Taker takes a lock and returns how to give it back.
type Taker func(ctx context.Context) (giveBack func() error, err error)

// Taking is a Taker of a Locker's key. Acquire is one of the Locker's methods,
// Acquire or TryAcquire.
func Taking(acquire func(context.Context, string, ...lock.Option) (lock.Lease, error), key string) Taker {
	return func(ctx context.Context) (func() error, error) {
		lease, err := acquire(ctx, key)
		if err != nil {
			return nil, err
		}
		return func() error { return lease.Release(ctx) }, nil
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

// SideBySide lets one goroutine take and give back for a while on each side in every
// round. The figures are pairs per second.
func SideBySide(ctx context.Context, rounds int, length time.Duration, sides ...*Side) error {
	return Rounds(rounds, func(counted bool) error {
		for _, s := range sides {
			n, start := 0, time.Now()
			for time.Since(start) < length {
				giveBack, err := s.Take(ctx)
				if err == nil {
					err = giveBack()
				}
				if err != nil {
					return fmt.Errorf("%s: %w", s.Name, err)
				}
				n++
			}
			if counted {
				s.Figures = append(s.Figures, float64(n)/time.Since(start).Seconds())
			}
		}
		return nil
	})
}
