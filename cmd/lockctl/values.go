package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/guarded"
)

// guardedWrites is the subject of the rules that need a place for guarded writes.
const guardedWrites = "guarded writes"

// triesGuardedWrites reports whether the backend claims them, and one of their rules is
// among those that were asked for.
func triesGuardedWrites(g backend.Guarantees, only []string) bool {
	return g.GuardedWrite && (len(only) == 0 || slices.ContainsFunc(conformance.Rules(), func(r conformance.Rule) bool {
		return (r.Subject == guardedWrites || strings.Contains(r.Name, "GuardedWrite")) && (slices.Contains(only, r.Name) || slices.Contains(only, r.Subject))
	}))
}

// openValues makes a place for guarded writes, or says why there is none.
func openValues(ctx context.Context, b backend.Backend) (guarded.Values, error) {
	keeper, ok := b.(guarded.Keeper)
	if !ok {
		return nil, errors.New("lockctl does not know how this backend writes them")
	}
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	v, err := keeper.GuardedValues(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s", plain(err))
	}
	return v, nil
}

// removeValues removes what the guarded writes have left.
func removeValues(v guarded.Values) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
	defer cancel()
	return v.Remove(ctx)
}
