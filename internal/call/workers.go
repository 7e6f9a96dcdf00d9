package call

import "time"

// workerIdle is how long a goroutine of workers waits for its next function.
const workerIdle = time.Second

// workers call functions on goroutines that are kept for a moment when they are
// through: the stack of a new one has to grow to the depth of a client library
// first, which takes longer than a request's share of the processor. There are no
// more of them than functions were under way at once, and none after stop is closed.
type workers struct {
	idle chan func()
	stop <-chan struct{}
}

func newWorkers(stop <-chan struct{}) workers {
	return workers{idle: make(chan func()), stop: stop}
}

// run calls f on a goroutine that is not the caller's, at once.
func (w workers) run(f func()) {
	select {
	case w.idle <- f:
	default:
		go w.work(f)
	}
}

func (w workers) work(f func()) {
	limit := time.NewTimer(workerIdle)
	defer limit.Stop()
	for {
		f()
		limit.Reset(workerIdle)
		select {
		case f = <-w.idle:
		case <-limit.C:
			return
		case <-w.stop:
			return
		}
	}
}
