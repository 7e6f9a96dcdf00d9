package flawed

import (
	"context"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z50 = Lock{
	ID: "Z50", Title: "requests that go together end together",
	Summary: "When the first of several callers gives up, all fail.",
	Seen:    "Merged calls, such as golang.org/x/sync/singleflight.",
	Instead: "A context of its own for the request.",
	File:    "shared_context.go", Over: Memory,
	Rule: "CancelHarmsNobody",
	Slow: true,                                                                                            // the end of one context is that of all requests under way
	Also: append([]string{"CancelBeforeSend", "NoSecretsInErrors", "LateGrant", "TTLGrain"}, cleanUps...), // where some callers give up beside others
	On:   onMemory(func(p primitives) backend.Backend { return &sharedContext{primitives: p} }),
}

// sharedContext sends the tries of concurrent callers together.
//
//	A: try job-a, on a context that ends in a millisecond; waits a little for company
//	B: try job-b, on a context without an end; goes with A
//	A's context ends
//	B: "context canceled", and does not know whether it holds job-b
//
// It works in every test in which callers are patient, and saves most of the round
// trips. Caught by CancelHarmsNobody, which has impatient callers beside patient ones.
//
// Instead: what was begun for many ends with the last of them.
type sharedContext struct {
	primitives
	mu    sync.Mutex
	party *party // that can still be joined
}

// party is a request for several callers.
type party struct {
	done chan struct{} // closed when err is set
	err  error
}

// Try implements backend.Backend.
func (s *sharedContext) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	s.mu.Lock()
	p := s.party
	first := p == nil
	if first {
		p = &party{done: make(chan struct{})}
		s.party = p
	}
	s.mu.Unlock()
	if first {
		time.Sleep(time.Millisecond) // the way to the server
		s.mu.Lock()
		s.party = nil
		s.mu.Unlock()
		p.err = ctx.Err() // of the first, for all
		close(p.done)
	}
	<-p.done
	if p.err != nil {
		return backend.Grant{}, p.err
	}
	return s.primitives.Try(context.WithoutCancel(ctx), req)
}
