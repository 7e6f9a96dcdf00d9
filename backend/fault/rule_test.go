package faultlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// met makes one try, and says what it met: the error names it.
func met(b backend.Backend, key string) string {
	_, err := b.Try(context.Background(), request(key))
	for _, name := range []string{"A", "B", "C"} {
		if errors.Is(err, named[name]) {
			return name
		}
	}
	if err != nil {
		return err.Error()
	}
	return "-"
}

var named = map[string]error{"A": errors.New("A"), "B": errors.New("B"), "C": errors.New("C")}

func failing(name string) faultlock.Fault { return faultlock.Drop().WithError(named[name]) }

// silent answers everything with success.
type silent struct{}

func (silent) Try(context.Context, backend.Request) (backend.Grant, error) {
	return backend.Grant{}, nil
}
func (silent) Renew(context.Context, backend.Hold) (backend.Validity, error) {
	return backend.Validity{}, nil
}
func (silent) Release(context.Context, backend.Hold) error { return nil }
func (silent) Guarantees() backend.Guarantees              { return backend.Guarantees{} }
func (silent) Close() error                                { return nil }

func TestRulesAreAnOrderedList(t *testing.T) {
	f := faultlock.New(silent{}, nil)
	b := f.Backend()
	f.Next(1, failing("A"), faultlock.OpTry)
	f.Next(2, faultlock.Pass(), faultlock.OpTry)
	f.Next(2, failing("B"), faultlock.OpTry, faultlock.OpRelease)
	f.Add(
		faultlock.Rule{Ops: []faultlock.Op{faultlock.OpRenew}, Fault: failing("A")},
		faultlock.Rule{Key: "k", Skip: 2, Times: 1, Fault: failing("C")},
	)
	var got string
	for range 4 {
		got += met(b, "k")
	}
	assert.Equal(t, "A--B", got)
	err := b.Release(t.Context(), backend.Hold{Key: "other"})
	require.ErrorIs(t, err, named["B"], "the second of the two")
	require.NoError(t, b.Release(t.Context(), backend.Hold{Key: "other"}))
	got = ""
	for range 4 {
		got += met(b, "other") + met(b, "k")
	}
	assert.Equal(t, "-----C--", got)
	_, err = b.Renew(t.Context(), backend.Hold{Key: "k"})
	require.ErrorIs(t, err, named["A"])
	f.Heal()
	_, err = b.Renew(t.Context(), backend.Hold{Key: "k"})
	require.NoError(t, err)
	f.Next(1, failing("C"))
	assert.Equal(t, "C", met(b, "k"), "rules count again after Heal")
	assert.Len(t, f.Injected(), 6)
}

func TestMistakesOfATestPanic(t *testing.T) {
	f := faultlock.New(silent{}, nil)
	for name, do := range map[string]func(){
		"no backend":        func() { faultlock.New(nil, nil) },
		"unknown operation": func() { f.All(faultlock.Drop(), "acquire") },
		"none":              func() { f.Next(0, faultlock.Drop()) },
		"negative":          func() { f.Add(faultlock.Rule{Skip: -1}) },
		"a lie":             func() { faultlock.FailAfter().WithError(fmt.Errorf("down: %w", backend.ErrUnavailable)) },
		"another lie":       func() { faultlock.ApplyLate(1).WithError(backend.ErrNotHeld) },
		"no error":          func() { faultlock.Drop().WithError(nil) },
		"a fault without":   func() { faultlock.HangAfter().WithError(errors.New("x")) },
		"nothing to ignore": func() { faultlock.FailAfter().IgnoringContext() },
		"not a loss":        func() { f.Lose("k", errors.New("x")) },
		"probability":       func() { faultlock.New(silent{}, &faultlock.Options{Random: &faultlock.Random{Chance: 2}}) },
		"unknown to draw at": func() {
			faultlock.New(silent{}, &faultlock.Options{Random: &faultlock.Random{Ops: []faultlock.Op{"x"}}})
		},
	} {
		assert.Panics(t, do, name)
	}
	assert.NotPanics(t, func() {
		faultlock.FailAfter().WithError(fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, backend.ErrUnavailable))
	})
}

func TestLogOfManyFaults(t *testing.T) {
	var seen []faultlock.Injection
	f := faultlock.New(silent{}, &faultlock.Options{Observe: func(i faultlock.Injection) { seen = append(seen, i) }})
	b := f.Backend()
	f.All(faultlock.Drop(), faultlock.OpTry)
	for range 10_005 {
		_, _ = b.Try(t.Context(), request("k"))
	}
	assert.Len(t, f.Injected(), 10_000)
	assert.Len(t, seen, 10_005)
	assert.Equal(t, 10_005, seen[10_004].Call)
	text := f.String()
	assert.Contains(t, text, "faultlock: 10005 entries\n")
	assert.Contains(t, text, `try "k", call 1: drop`)
	assert.Contains(t, text, "and 5 more")
}

// drawn is what the random faults of a seed do to the same calls.
func drawn(r faultlock.Random, keys ...string) []string {
	f := faultlock.New(silent{}, &faultlock.Options{Random: &r})
	b := f.Backend()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // delays need not be waited for
	var wg sync.WaitGroup
	for _, key := range keys {
		wg.Go(func() {
			for range 200 {
				_, _ = b.Try(ctx, request(key))
				_, _ = b.Renew(ctx, backend.Hold{Key: key})
				_ = b.Release(ctx, backend.Hold{Key: key})
			}
		})
	}
	wg.Wait()
	_ = b.Close()
	out := make([]string, 0, len(f.Injected()))
	for _, i := range f.Injected() {
		if !i.Landed {
			out = append(out, fmt.Sprintf("%s %s %d %s", i.Op, i.Key, i.Call, i.Fault))
		}
	}
	return out
}

func TestTheSameSeedGivesTheSameFaults(t *testing.T) {
	r := faultlock.Random{Seed: 7, Active: 0.5, MaxDelay: time.Nanosecond}
	one := drawn(r, "a", "b", "c")
	require.NotEmpty(t, one)
	assert.ElementsMatch(t, one, drawn(r, "a", "b", "c"), "whatever the order of goroutines")
	r.Seed = 8
	assert.NotEqual(t, one, drawn(r, "a", "b", "c"))
	r.Seed = 7
	assert.Subset(t, one, drawn(r, "b"), "other keys don't matter")
}

// TestProbabilities: over many seeds about a quarter of the points is active, and an
// active point fires about as often as it should.
func TestProbabilities(t *testing.T) {
	const seeds, calls = 400, 200
	points, fired := 0, 0
	for seed := range uint64(seeds) {
		byPoint := map[string]int{}
		f := faultlock.New(silent{}, &faultlock.Options{Random: &faultlock.Random{
			Seed: seed + 1, Chance: 0.1, MaxDelay: time.Nanosecond, Ops: []faultlock.Op{faultlock.OpRelease},
		}})
		b := f.Backend()
		for range calls {
			_ = b.Release(t.Context(), backend.Hold{Key: "k"})
		}
		for _, i := range f.Injected() {
			assert.Equal(t, faultlock.OpRelease, i.Op)
			if !i.Landed {
				name, _, _ := strings.Cut(i.Fault.String(), "(")
				byPoint[name]++
				fired++
			}
		}
		points += len(byPoint)
		_ = b.Close()
	}
	// Seven points: the two hangs need a deadline.
	assert.InDelta(t, 0.25, float64(points)/(7*seeds), 0.04)
	// Of two points that would fire, the first does.
	assert.InDelta(t, 0.093, float64(fired)/float64(points*calls), 0.012)
}

func TestHangsAreDrawnForBoundedCallsOnly(t *testing.T) {
	r := faultlock.Random{Seed: 1, Active: 1, Chance: 1, Ops: []faultlock.Op{faultlock.OpTry}}
	always := faultlock.New(silent{}, &faultlock.Options{Random: &r})
	require.Contains(t, always.String(), "try/hang before, try/hang after")
	_, err := always.Backend().Try(t.Context(), request("k"))
	require.ErrorIs(t, err, backend.ErrUnavailable, "with every point firing, the first of the list")
	always.Heal()
	_, err = always.Backend().Try(t.Context(), request("k"))
	require.NoError(t, err, "Heal ends the random faults too")
	assert.Contains(t, always.String(), "seed 1")

	hung := 0
	for seed := range uint64(300) {
		f := faultlock.New(silent{}, &faultlock.Options{Random: &faultlock.Random{Seed: seed + 1, Active: 1, Chance: 0.2, MaxDelay: 1, Ops: r.Ops}})
		b := f.Backend()
		_, _ = b.Try(context.Background(), request("k")) // returns
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, err := b.Try(ctx, request("k"))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			hung++
		}
		_ = b.Close()
	}
	assert.Positive(t, hung)
}

func TestCallsAreCounted(t *testing.T) {
	f := faultlock.New(silent{}, nil)
	b := f.Backend()
	f.Next(1, faultlock.FailBefore(), faultlock.OpTry)
	for range 3 {
		_, _ = b.Try(t.Context(), backend.Request{Key: "a"})
	}
	_ = b.Release(t.Context(), backend.Hold{Key: "b"})
	assert.Equal(t, 3, f.Calls(faultlock.OpTry, "a"), "those that met a fault, too")
	assert.Equal(t, 1, f.Calls(faultlock.OpRelease, "b"))
	assert.Zero(t, f.Calls(faultlock.OpRelease, "a"))
	assert.Panics(t, func() { f.Calls("tyr", "a") }, "an operation that does not exist is never called")
}
