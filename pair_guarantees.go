package lock

import (
	"cmp"
	"slices"

	"github.com/mortiselock/lock/backend"
)

// Guarantees returns what leases in both stores promise: of each claim the weaker one. The
// assumptions are those of both, although two holders at a time would take that both stores
// fail at once. Where a Locker does not say what it promises, nothing is claimed beyond
// mutual exclusion, release by the owner, expiry and renewal. It does no I/O and always
// returns the same.
func (p *Pair) Guarantees() backend.Guarantees { return p.claims.Clone() }

func (p *Pair) weaker() backend.Guarantees {
	known := [2]backend.Guarantees{}
	for i, s := range p.sides {
		if s.claims != nil {
			known[i] = *s.claims
		} else {
			known[i] = backend.Guarantees{
				Name: "another lock", Reach: backend.ReachNetwork, Expiry: backend.ClockUnknown,
				Token: backend.TokenNone, Reentrancy: backend.ReentrancyNone, Waiting: backend.WaitPoll,
				Assumptions: []string{"The other lock keeps what its own documentation promises."},
			}
		}
	}
	return weaker(known[oldSide], known[newSide])
}

// weaker is what two locks promise that are held at the same time.
func weaker(a, b backend.Guarantees) backend.Guarantees {
	g := backend.Guarantees{
		Name:            a.Name + " and " + b.Name,
		Reach:           lower(a.Reach, b.Reach, backend.ReachProcess, backend.ReachHost, backend.ReachNetwork),
		Assumptions:     slices.Clone(a.Assumptions),
		Expiry:          lower(a.Expiry, b.Expiry, backend.ClockUnknown, backend.ClockServerWall, backend.ClockMajority, backend.ClockServerSteady, backend.ClockConnection, backend.ClockHost, backend.ClockProcess),
		MinTTL:          max(a.MinTTL, b.MinTTL),
		MaxTTL:          a.MaxTTL,
		TTLGrain:        commonMultiple(a.TTLGrain, b.TTLGrain),
		LongerTTL:       a.LongerTTL,
		TakeoverLag:     max(a.TakeoverLag, b.TakeoverLag),
		EndsWithSession: a.EndsWithSession || b.EndsWithSession,
		// A token is the larger one: where one store has none, that of the other.
		Token:          cmp.Or(onlyOne(a.Token, b.Token), lower(a.Token, b.Token, backend.TokenCounter, backend.TokenRevision, backend.TokenQuorum)),
		TokenSurvives:  common(a.TokenSurvives, b.TokenSurvives),
		HoldsSurvive:   common(a.HoldsSurvive, b.HoldsSurvive),
		Reentrancy:     lower(a.Reentrancy, b.Reentrancy, backend.ReentrancyNone, backend.ReentrancyClient, backend.ReentrancyServer),
		Waiting:        lower(a.Waiting, b.Waiting, backend.WaitPoll, backend.WaitPush, backend.WaitQueue),
		Fair:           a.Fair && b.Fair,
		ManualRenewal:  a.ManualRenewal && b.ManualRenewal,
		WithoutRenewal: a.WithoutRenewal && b.WithoutRenewal,
		LossSignal:     a.LossSignal && b.LossSignal,
		Deadline:       a.Deadline && b.Deadline,
		HolderDetails:  a.HolderDetails && b.HolderDetails,
	}
	switch {
	case a.Token == backend.TokenNone:
		g.TokenSurvives = b.TokenSurvives
	case b.Token == backend.TokenNone:
		g.TokenSurvives = a.TokenSurvives
	}
	for _, s := range b.Assumptions {
		if !slices.Contains(g.Assumptions, s) {
			g.Assumptions = append(g.Assumptions, s)
		}
	}
	if b.MaxTTL > 0 && (a.MaxTTL == 0 || b.MaxTTL < a.MaxTTL) {
		g.MaxTTL, g.LongerTTL = b.MaxTTL, b.LongerTTL
	}
	return g
}

// lower returns the one of two that stands first in an order.
func lower[T comparable](a, b T, order ...T) T {
	if slices.Index(order, b) < slices.Index(order, a) {
		return b
	}
	return a
}

// onlyOne returns the source of the one store that has tokens, TokenNone when none has,
// and "" when both have.
func onlyOne(a, b backend.TokenSource) backend.TokenSource {
	switch backend.TokenNone {
	case a:
		return b
	case b:
		return a
	}
	return ""
}

// common returns what is in both lists.
func common[T comparable](a, b []T) []T {
	var both []T
	for _, x := range a {
		if slices.Contains(b, x) {
			both = append(both, x)
		}
	}
	return both
}

// commonMultiple returns the smallest duration that is a multiple of both; zero counts as
// one.
func commonMultiple[T ~int64](a, b T) T {
	a, b = max(a, 1), max(b, 1)
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
