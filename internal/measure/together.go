package measure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Together lets a goroutine for each taker take and give back for as long as more
// returns true, and returns how many pairs all of them made, and in which time. More is
// called before every pair, by all goroutines: see Serially. After an error nobody
// begins another pair.
func Together(ctx context.Context, more func() bool, takers ...Taker) (pairs int, took time.Duration, err error) {
	var all atomic.Int64
	w := newWorkers(ctx)
	start := time.Now()
	for _, take := range takers {
		w.start(func(failed context.Context) error {
			n := 0
			defer func() { all.Add(int64(n)) }()
			for ; failed.Err() == nil && more(); n++ {
				if err := pair(ctx, take); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = w.wait()
	return int(all.Load()), time.Since(start), err
}

// During is true for a time, from now on.
func During(length time.Duration) func() bool {
	end := time.Now().Add(length)
	return func() bool { return time.Now().Before(end) }
}

// Serially is more for several goroutines. More is not called again after it has
// returned false.
func Serially(more func() bool) func() bool {
	var mu sync.Mutex
	over := false
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		over = over || !more()
		return !over
	}
}

// pair takes and gives back.
func pair(ctx context.Context, take Taker) error {
	giveBack, err := take(ctx)
	if err != nil {
		return err
	}
	return giveBack()
}

// workers are goroutines of which the first error ends all.
type workers struct {
	ctx  context.Context
	fail context.CancelCauseFunc
	wg   sync.WaitGroup
}

func newWorkers(ctx context.Context) *workers {
	w := &workers{}
	w.ctx, w.fail = context.WithCancelCause(ctx)
	return w
}

func (w *workers) start(f func(ctx context.Context) error) {
	w.wg.Go(func() {
		if err := f(w.ctx); err != nil {
			w.fail(err)
		}
	})
}

// until waits until the time, or until one has failed.
func (w *workers) until(t time.Time) {
	select {
	case <-time.After(time.Until(t)):
	case <-w.ctx.Done():
	}
}

// wait returns the first error.
func (w *workers) wait() error {
	w.wg.Wait()
	err := context.Cause(w.ctx)
	w.fail(nil)
	return err
}
