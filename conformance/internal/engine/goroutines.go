package engine

import (
	"cmp"
	"errors"
	"time"
)

// Abort ends the goroutines of a case. The reason is in the env.
type Abort struct{}

// skipped ends a case that has nothing to test with.
type skipped struct{ reason string }

// Pause waits, or ends the case with its context.
func (e *Env) Pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.Ctx.Done():
		panic(Abort{})
	}
}

// Within waits for the channel. It reports false when the control timer was
// first, even after the machine stood still.
func (e *Env) Within(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
	case <-e.Ctx.Done():
		panic(Abort{})
	}
	// Both may have become ready while this process was not running.
	grace := time.NewTimer(50 * time.Millisecond)
	defer grace.Stop()
	select {
	case <-done:
		return true
	case <-grace.C:
		return false
	}
}

// Together runs the functions at the same time and waits for all of them. When
// one of them ends the case, together does.
func (e *Env) Together(fs ...func()) { e.Start(fs...)() }

// Each runs n functions together.
func (e *Env) Each(n int, f func(i int)) {
	fs := make([]func(), n)
	for i := range fs {
		fs[i] = func() { f(i) }
	}
	e.Together(fs...)
}

// EachFew runs n functions, four at a time: where each has a request about one key, more of
// them measure the machine.
func (e *Env) EachFew(n int, f func(i int)) {
	const together = 4
	e.Each(together, func(first int) {
		for i := first; i < n; i += together {
			f(i)
		}
	})
}

// Start runs the functions and returns the function that waits for them.
func (e *Env) Start(fs ...func()) (wait func()) {
	ended := make(chan any, len(fs))
	for _, f := range fs {
		go func() { ended <- e.Guard(f) }()
	}
	return func() {
		var why any // what ended one for a reason, rather than the abort that it has made of others
		for range fs {
			end := <-ended
			if _, aborted := end.(Abort); why == nil || end != nil && !aborted {
				why = end
			}
		}
		if why != nil {
			panic(why)
		}
	}
}

// Guard runs f in a goroutine of its own, waits for it, and returns what ended it
// early: abort, skipped, inconclusive or nil. A panic of the lock under test becomes a failure.
// What ends one goroutine of a case for a reason ends the others too.
func (e *Env) Guard(f func()) any {
	ended := make(chan any, 1)
	go func() {
		returned := false
		defer func() {
			var end any
			switch p := recover().(type) {
			case nil:
				if !returned {
					e.Fail(Excuse{}, "", "a goroutine of the case ended without returning: something called runtime.Goexit, such as t.FailNow in Config.Open")
					end = Abort{}
				}
			case Abort, skipped, inconclusive:
				end = p
			default:
				e.Fail(Excuse{}, "", "panic: %v\n%s", p, stack())
				end = Abort{}
			}
			if _, aborted := end.(Abort); end != nil && !aborted {
				e.mu.Lock()
				e.reason = cmp.Or(e.reason, end)
				e.mu.Unlock()
			}
			if end != nil {
				e.seal()
				e.cancel(errCaseOver)
			}
			ended <- end
		}()
		f()
		returned = true
	}()
	return <-ended
}

var errCaseOver = errors.New("conformance: the case is over")

// seal keeps what follows from the end of the context out of the evidence.
func (e *Env) seal() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sealed = true
}
