package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock"
	memlock "github.com/mortiselock/lock/memory"
)

func Example() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, "mem:", nil) // or file:, or redis://localhost:6379
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()

	lease, err := locker.Acquire(ctx, "nightly-report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("nobody else writes the report now")
	if err := lease.Release(ctx); err != nil {
		log.Fatal("the report was not written alone: ", err)
	}
	// Output: nobody else writes the report now
}

// Do releases the key whatever happens, and its error tells when the hold was
// lost while the function was running.
func ExampleDo() {
	ctx := context.Background()
	locker, _ := lock.Open(ctx, "mem:", nil)
	defer locker.Close()

	err := lock.Do(ctx, locker, "migrate", func(ctx context.Context, lease lock.Lease) error {
		for step := 1; step <= 3; step++ {
			if ctx.Err() != nil { // the caller gave up, or the hold was lost
				return context.Cause(ctx)
			}
			fmt.Println("step", step)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// step 1
	// step 2
	// step 3
	// <nil>
}

// A job that every copy of a service starts at midnight, and that one of them is
// to do.
func ExampleTryDo() {
	ctx := context.Background()
	one, _ := lock.Open(ctx, "mem:", nil)
	defer one.Close()
	other, _ := lock.Open(ctx, "mem:", nil)
	defer other.Close()

	job := func(context.Context, lock.Lease) error {
		fmt.Println("one copy works")
		err := lock.TryDo(ctx, other, "midnight", func(context.Context, lock.Lease) error {
			fmt.Println("never printed")
			return nil
		})
		if errors.Is(err, lock.ErrHeld) {
			fmt.Println("the other has nothing to do")
		}
		return nil
	}
	fmt.Println(lock.TryDo(ctx, one, "midnight", job, lock.WithTTL(5*time.Second)))
	// Output:
	// one copy works
	// the other has nothing to do
	// <nil>
}

// A refusal says who holds the key.
func ExampleHeldError() {
	ctx := context.Background()
	locker, _ := lock.Open(ctx, "mem:", nil)
	defer locker.Close()
	lease, _ := locker.Acquire(ctx, "deploy", lock.WithLabel("release 4.2"))
	defer lease.Release(ctx)

	_, err := locker.TryAcquire(ctx, "deploy")
	var held *lock.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.Holder.Label)
		fmt.Println("for at most another 15 s unless renewed:", held.Remaining <= 15*time.Second)
	}
	// Output:
	// held by release 4.2
	// for at most another 15 s unless renewed: true
}

// Whoever names the same owner enters again. The key is free when the last lease
// has ended.
func ExampleWithOwner() {
	ctx := context.Background()
	locker, _ := lock.Open(ctx, "mem:", nil)
	defer locker.Close()
	owner := lock.WithOwner("order-4711:0b6e2f4a")

	outer, _ := locker.Acquire(ctx, "stock", owner)
	inner, _ := locker.Acquire(ctx, "stock", owner)
	fmt.Println("same token:", outer.Token() == inner.Token())

	_ = outer.Release(ctx)
	_, err := locker.TryAcquire(ctx, "stock")
	fmt.Println("still held:", errors.Is(err, lock.ErrHeld))

	_ = inner.Release(ctx)
	lease, err := locker.TryAcquire(ctx, "stock")
	fmt.Println("free:", err == nil && lease.Release(ctx) == nil)
	// Output:
	// same token: true
	// still held: true
	// free: true
}

// shelf is a resource that refuses what comes too late. It stands for a table
// with a column for the token, or a file server that checks one.
type shelf struct {
	highest uint64
	stock   int
}

func (s *shelf) write(token uint64, stock int) error {
	if token < s.highest {
		return errors.New("refused: a newer holder has written")
	}
	s.highest, s.stock = token, stock
	return nil
}

// A process that pauses between looking at its lease and acting can act late,
// under any lock. The token lets the resource notice.
func ExampleLease_token() {
	ctx := context.Background()
	locker, _ := lock.Open(ctx, "mem:", nil)
	defer locker.Close()
	var s shelf

	// The first holder does not renew, and does not look at its lease either.
	slow, _ := locker.Acquire(ctx, "shelf", lock.WithTTL(300*time.Millisecond), lock.WithoutRenewal())
	next, _ := locker.Acquire(ctx, "shelf") // waits until the first lease has expired
	defer next.Release(ctx)

	fmt.Println("the new holder writes:", s.write(next.Token(), 7))
	fmt.Println("the old holder writes:", s.write(slow.Token(), 8))
	fmt.Println("stock:", s.stock)
	// Output:
	// the new holder writes: <nil>
	// the old holder writes: refused: a newer holder has written
	// stock: 7
}

// The context of a lease ends when the hold does, and its cause says why.
func ExampleLease_context() {
	ctx := context.Background()
	store := memlock.NewStore(nil) // the "server", so that this example can play a fault
	locker, _ := memlock.New(ctx, &memlock.Options{Store: store})
	defer locker.Close()

	lease, _ := locker.Acquire(ctx, "batch")
	store.Remove("batch") // an operator deletes the record
	_ = lease.Renew(ctx)  // the automatic renewal comes every third of the TTL

	<-lease.Context().Done()
	cause := context.Cause(lease.Context())
	fmt.Println("lost:", errors.Is(cause, lock.ErrLost))
	fmt.Println("taken over, not merely expired:", errors.Is(cause, lock.ErrTakenOver))
	fmt.Println("Release says so too:", errors.Is(lease.Release(ctx), lock.ErrLost))
	// Output:
	// lost: true
	// taken over, not merely expired: true
	// Release says so too: true
}

// A wait that ends with its context matches both reasons.
func ExampleLocker_acquire() {
	ctx := context.Background()
	locker, _ := lock.Open(ctx, "mem:", nil)
	defer locker.Close()
	lease, _ := locker.Acquire(ctx, "printer")
	defer lease.Release(ctx)

	waiting, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := locker.Acquire(waiting, "printer")
	fmt.Println("out of time:", errors.Is(err, context.DeadlineExceeded))
	fmt.Println("somebody else has it:", errors.Is(err, lock.ErrHeld))
	// Output:
	// out of time: true
	// somebody else has it: true
}

// Who holds and who waits now, as gauges for metrics. They are exact.
func ExampleObserver() {
	ctx := context.Background()
	var holders, waiters atomic.Int64
	locker, _ := lock.Open(ctx, "mem:", &lock.Options{Observer: func(_ context.Context, e lock.Event) {
		switch e.Kind {
		case lock.EventGranted:
			holders.Add(1)
		case lock.EventLost, lock.EventReleased:
			holders.Add(-1)
		case lock.EventWaitBegun:
			waiters.Add(1)
		case lock.EventWaitEnded:
			waiters.Add(-1)
		}
	}})
	lease, _ := locker.Acquire(ctx, "gauges")
	go func() { _, _ = locker.Acquire(ctx, "gauges") }()
	for waiters.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(holders.Load(), "holds,", waiters.Load(), "waits")
	_ = lease.Release(ctx) // who waits gets the key, until Close
	_ = locker.Close()
	fmt.Println(holders.Load(), "holds,", waiters.Load(), "waits")
	// Output:
	// 1 holds, 1 waits
	// 0 holds, 0 waits
}
