package faultlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	memlock "github.com/mortiselock/lock/memory"
)

// report is the program under test: a job of several steps, of which only one copy
// may run at a time.
func report(ctx context.Context, locker lock.Locker, step func(n int)) error {
	err := lock.TryDo(ctx, locker, "report", func(ctx context.Context, _ lock.Lease) error {
		for n := 1; n <= 3; n++ {
			if ctx.Err() != nil { // from here on somebody else may run
				return fmt.Errorf("stopped before step %d: %w", n, context.Cause(ctx))
			}
			step(n)
		}
		return nil
	})
	switch {
	case errors.Is(err, lock.ErrHeld):
		return nil // another copy does it
	case errors.Is(err, lock.ErrLost):
		return fmt.Errorf("roll back: %w", err)
	case errors.Is(err, lock.ErrOutcomeUnknown), errors.Is(err, lock.ErrUnavailable):
		return fmt.Errorf("try again later: %w", err)
	}
	return err
}

// faultyLocker is a Locker in memory, and the faults that the test makes.
func faultyLocker() (*lock.Client, *faultlock.Faults) {
	inner, err := memlock.NewBackend(context.Background(), &memlock.Options{Store: memlock.NewStore(nil)})
	if err != nil {
		log.Fatal(err)
	}
	faults := faultlock.New(inner, nil)
	locker, err := lock.New(faults.Backend(), nil)
	if err != nil {
		log.Fatal(err)
	}
	return locker, faults
}

// A job must stop when its lease is lost in the middle, and must not report
// success.
func Example_lostLease() {
	locker, faults := faultyLocker()
	defer locker.Close()

	err := report(context.Background(), locker, func(n int) {
		fmt.Println("step", n)
		if n == 2 {
			faults.Lose("report", lock.ErrTakenOver)
		}
	})
	fmt.Println("lost:", errors.Is(err, lock.ErrLost))
	// Output:
	// step 1
	// step 2
	// lost: true
}

// An acquisition of unknown outcome: the server has granted the key, and the answer
// was lost. The lock package gives the key back behind the scenes, so that trying
// again is all that a program has to do.
func Example_outcomeUnknown() {
	locker, faults := faultyLocker()
	defer locker.Close()

	faults.Next(1, faultlock.FailAfter(), faultlock.OpTry)
	step := func(n int) { fmt.Println("step", n) }

	err := report(context.Background(), locker, step)
	fmt.Println("unknown:", errors.Is(err, lock.ErrOutcomeUnknown), "made by the test:", errors.Is(err, faultlock.ErrInjected))

	err = report(context.Background(), locker, step)
	fmt.Println("again:", err)
	// Output:
	// unknown: true made by the test: true
	// step 1
	// step 2
	// step 3
	// again: <nil>
}

// A release whose answer is lost is repeated. When all answers are lost, the work
// was done alone, and only the release is in doubt: ErrOutcomeUnknown and not
// ErrLost.
func ExampleFaults_All() {
	locker, faults := faultyLocker()
	defer locker.Close()
	ctx := context.Background()

	lease, err := locker.Acquire(ctx, "stock")
	if err != nil {
		log.Fatal(err)
	}
	faults.All(faultlock.FailAfter(), faultlock.OpRelease)
	err = lease.Release(ctx)
	fmt.Println("unknown:", errors.Is(err, lock.ErrOutcomeUnknown), "lost:", errors.Is(err, lock.ErrLost))

	faults.Heal()
	next, err := locker.TryAcquire(ctx, "stock")
	fmt.Println("next:", next.Key(), err)
	// Output:
	// unknown: true lost: false
	// next: stock <nil>
}

// Rules say exactly which calls meet which fault: the second and third acquisition
// of one key find no server.
func ExampleFaults_Add() {
	locker, faults := faultyLocker()
	defer locker.Close()
	ctx := context.Background()

	faults.Add(faultlock.Rule{
		Ops: []faultlock.Op{faultlock.OpTry}, Key: "a", Skip: 1, Times: 2,
		Fault: faultlock.FailBefore(),
	})
	for _, key := range []string{"a", "b", "a", "b", "a", "a"} {
		lease, err := locker.TryAcquire(ctx, key)
		if err != nil {
			fmt.Println(key, "unavailable:", errors.Is(err, lock.ErrUnavailable))
			continue
		}
		fmt.Println(key, "ok")
		_ = lease.Release(ctx)
	}
	for _, i := range faults.Injected() {
		fmt.Println(i.Op, i.Key, i.Call, i.Fault)
	}
	// Output:
	// a ok
	// b ok
	// a unavailable: true
	// b ok
	// a unavailable: true
	// a ok
	// try a 2 fail before
	// try a 3 fail before
}

// Random faults: a loop over seeds meets troubles that nobody thought of. The text
// of the Faults names the seed; with it a run that failed is repeated.
func ExampleRandom() {
	for seed := uint64(1); seed <= 5; seed++ {
		inner, err := memlock.NewBackend(context.Background(), &memlock.Options{Store: memlock.NewStore(nil)})
		if err != nil {
			log.Fatal(err)
		}
		faults := faultlock.New(inner, &faultlock.Options{Random: &faultlock.Random{
			Seed: seed, Active: 0.5, Chance: 0.2,
			Faults: []faultlock.Fault{faultlock.FailBefore(), faultlock.Drop(), faultlock.FailAfter(), faultlock.Duplicate()},
		}})
		locker, err := lock.New(faults.Backend(), nil)
		if err != nil {
			log.Fatal(err)
		}
		for range 20 {
			err := report(context.Background(), locker, func(int) {})
			if err != nil && !errors.Is(err, faultlock.ErrInjected) {
				fmt.Println(err, faults)
			}
		}
		_ = locker.Close()
	}
	fmt.Println("done")
	// Output: done
}
