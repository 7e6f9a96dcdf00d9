package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// abandoned is the error of a call whose context ended when the command was sent, perhaps,
// and not answered. answered is closed when the server has carried it out, or will not any
// more, or nobody knows.
type abandoned struct {
	cause    error
	answered <-chan struct{}
}

func (a abandoned) Error() string {
	return fmt.Sprintf("the server had not answered: %v", a.cause)
}

func (a abandoned) Unwrap() error { return a.cause }

// abandonedOnes are the commands that were abandoned, by the acquisition that they are for:
// what is sent for it afterwards, such as its release, should reach the server after them.
type abandonedOnes struct {
	some atomic.Int32 // how many there are

	mu       sync.Mutex
	answered map[string]<-chan struct{}
}

// landing is how long a command waits for one that was abandoned, at most: for a server or a
// machine that is slow for a moment, and not for a connection that hangs.
const landing = 250 * time.Millisecond

// note remembers a command that was abandoned, if that is the error.
func (o *abandonedOnes) note(id string, err error) {
	var a abandoned
	if !errors.As(err, &a) {
		return
	}
	o.some.Add(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answered == nil {
		o.answered = map[string]<-chan struct{}{}
	}
	o.answered[id] = a.answered
	go func() {
		<-a.answered
		o.some.Add(-1)
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.answered[id] == a.answered {
			delete(o.answered, id)
		}
	}()
}

// settle waits a moment for a command that was abandoned for the acquisition.
func (o *abandonedOnes) settle(ctx context.Context, id string) {
	if o.some.Load() == 0 {
		return
	}
	o.mu.Lock()
	answered, found := o.answered[id]
	o.mu.Unlock()
	if !found {
		return
	}
	patience := time.NewTimer(landing)
	defer patience.Stop()
	select {
	case <-answered:
	case <-patience.C:
	case <-ctx.Done():
	}
}
