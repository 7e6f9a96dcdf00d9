package rolling

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
)

// TestAlsoOnPairsOfRealStores runs the suite, which pairs have in virtual time.
func TestAlsoOnPairsOfRealStores(t *testing.T) {
	suites.Also(t)
	for _, m := range [][2]string{{"file", "redis"}, {"redis", "etcd"}} {
		t.Run(m[0]+" and "+m[1], func(t *testing.T) {
			t.Parallel()
			child, err := json.Marshal(changeOf(t, m[0], m[1]))
			require.NoError(t, err)
			cfg := pairOf(string(child))
			cfg.Judge = judgeOfPairs(t)
			conformance.Run(t, cfg)
		})
	}
}

// judgeOfPairs leaves out refusals beside a grant: as [lock.Both] says, who refused may be
// somebody who has the old store and is waiting for the new one.
func judgeOfPairs(t linear.TB) func(conformance.History) error {
	judge := linear.Judge(t)
	return func(h conformance.History) error {
		all := h.Operations
		h.Operations = slices.DeleteFunc(slices.Clone(all), func(op conformance.Operation) bool {
			return op.Kind == conformance.Refused && slices.ContainsFunc(all, func(o conformance.Operation) bool {
				return o.Kind == conformance.Granted && o.Call <= op.Return && op.Call <= o.Return
			})
		})
		return judge(h)
	}
}

// An owner enters the old store, where another hold of it waits for the new one, and gives both
// back before that has it. A refusal that nothing beside it explains still counts.
func TestJudgeOfPairs(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	h := conformance.History{Key: "k", Tokens: true, Operations: []conformance.Operation{
		{Client: 0, Kind: conformance.Granted, Hold: 1, Owner: "A", Token: 2, Call: 0, Return: 20 * ms},
		{Client: 1, Kind: conformance.Refused, Owner: "B", Call: 1 * ms, Return: 2 * ms},
		{Client: 2, Kind: conformance.Granted, Hold: 2, Owner: "A", Token: 1, Call: 3 * ms, Return: 5 * ms},
		{Client: 2, Kind: conformance.Released, Hold: 2, Call: 6 * ms, Return: 7 * ms},
		{Client: 0, Kind: conformance.Released, Hold: 1, Call: 21 * ms, Return: 22 * ms},
	}}
	require.NoError(t, judgeOfPairs(t)(h))
	require.Error(t, linear.Judge(t)(h), "of other locks it makes no sense")
	h.Operations = append(h.Operations, conformance.Operation{Client: 1, Kind: conformance.Refused, Owner: "B", Call: 23 * ms, Return: 24 * ms})
	require.Error(t, judgeOfPairs(t)(h))
}

// pairOf is the suite's Config, also in the processes that it starts.
func pairOf(child string) conformance.Config {
	var c change
	if err := json.Unmarshal([]byte(child), &c); err != nil {
		panic(err)
	}
	cfg := conformance.Config{
		Open: func(ctx context.Context) (lock.Locker, error) {
			return openBoth(ctx, c.Old, c.New, &lock.Options{TTL: 2 * time.Second})
		},
		Remove: func(ctx context.Context, key string) error {
			if err := remove(ctx, c.New, key); err != nil {
				return err
			}
			// A holder that is told of it at once may have released the other record by now.
			if err := remove(ctx, c.Old, key); !errors.Is(err, lock.ErrNotHeld) {
				return err
			}
			return nil
		},
		Child:  child,
		TTL:    2 * time.Second,
		Budget: min(servertest.Budget(), 5*time.Second),
	}
	return cfg
}

// remove ends the hold of a key by force in one store.
func remove(ctx context.Context, url, key string) error {
	b, err := backend.DefaultMux.Open(ctx, url, backend.OpenConfig{LookOnly: true})
	if err != nil {
		return err
	}
	defer b.Close()
	in, _ := backend.As[backend.Inspector](b)
	rec, err := in.Inspect(ctx, key)
	if err != nil {
		return err
	}
	force, _ := backend.As[backend.ForceReleaser](b)
	return force.ForceRelease(ctx, key, rec.Token)
}
