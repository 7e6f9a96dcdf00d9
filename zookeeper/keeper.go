package zklock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// keep is the session's own goroutine. It sends a read when nothing else was sent for
// a while, without which a write proves less (see proof.go) and a silent server would
// be noticed late, and has nodes removed that nobody claims: those of holds that were
// not renewed for their TTL, of places that nobody waits at, and of requests whose
// caller had gone. The session alone would keep them for as long as the process lives.
// It ends with the session, whose connection it then closes.
func (s *session) keep() {
	defer close(s.over)
	var reapers sync.WaitGroup
	defer reapers.Wait() // Close waits for what they log
	defer s.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.gone:
			return
		}
		now := s.clock.Now()
		s.mu.Lock()
		timeout := s.timeout
		every := max(timeout/12, time.Millisecond)
		idle := s.attached && now.Sub(s.proof.last) >= every*3/4
		s.sweepWatches()
		due := s.dueNodes()
		s.mu.Unlock()
		if len(due) > 0 {
			reapers.Go(func() { s.reap(due, timeout/3) })
		}
		if idle {
			ctx, cancel := context.WithTimeout(s.life, timeout/3)
			_ = ask(ctx, s, func(c *zk.Conn) (bool, error) {
				found, _, err := c.Exists(s.cfg.root())
				return found, err
			}, nil)
			cancel()
		}
		timer.Reset(every)
	}
}

// dueNodes are the nodes to be removed, unless that is under way. The mutex is held.
func (s *session) dueNodes() []*node {
	if s.reaping || !s.attached {
		return nil
	}
	now := s.clock.Now()
	var due []*node
	for _, n := range s.places {
		if n.leaving == 0 && (n.doomed || n.waiting == 0 && now >= n.expiry) {
			n.doomed = true
			due = append(due, n)
		}
	}
	s.reaping = len(due) > 0
	return due
}

// reap removes nodes, one after the other. What fails comes back in the next round.
func (s *session) reap(due []*node, limit time.Duration) {
	for _, n := range due {
		ctx, cancel := context.WithTimeout(s.life, limit)
		if _, err := n.remove(ctx); err != nil {
			s.cfg.logger.Debug("lock node not removed yet", "key", n.key, "error", err)
		}
		cancel()
	}
	s.mu.Lock()
	s.reaping = false
	s.mu.Unlock()
}

// watch returns a channel that is closed when the node has changed or is gone, and
// false when it is gone already. All who watch a node share one watch: the client
// library cannot take one back, and cancelled waiters would pile them up.
func (s *session) watch(ctx context.Context, path string) (<-chan zk.Event, bool, error) {
	s.mu.Lock()
	s.sweepWatches()
	ch := s.watches[path]
	s.mu.Unlock()
	if ch != nil {
		return ch, true, nil
	}
	var era int
	a := ask(ctx, s, func(c *zk.Conn) (<-chan zk.Event, error) {
		era, _ = s.connection()
		// Exists would leave a watch on the server for a node that never comes back.
		_, _, ch, err := c.GetW(path)
		return ch, err
	}, func(a answer[<-chan zk.Event]) {
		if a.err == nil { // for those who come next, as the client library keeps it
			s.share(path, era, a.value)
		}
	})
	switch {
	case errors.Is(a.err, zk.ErrNoNode):
		return nil, false, nil
	case a.err != nil:
		return nil, false, a.err
	}
	s.share(path, era, a.value)
	return a.value, true, nil
}

// share keeps a watch that was asked for in this era. Of two on one node, both of which fire
// at once, it is enough to know one.
func (s *session) share(path string, era int, ch <-chan zk.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case fired(ch):
	case s.era != era:
		s.retired = append(s.retired, ch)
	default:
		s.watches[path] = ch
	}
}

// sweepWatches drops the watches that have fired. The mutex is held.
func (s *session) sweepWatches() {
	for path, ch := range s.watches {
		select {
		case <-ch: // those who wait see that it is closed
			delete(s.watches, path)
		default:
		}
	}
	s.retired = slices.DeleteFunc(s.retired, fired)
}

// retireWatches begins a new connection: those who wait look again, and what they
// watched on the earlier one is of no use to them. It reports whether the client
// library has watches, which it will set again. The mutex is held.
func (s *session) retireWatches() bool {
	s.sweepWatches()
	for _, ch := range s.watches {
		s.retired = append(s.retired, ch)
	}
	clear(s.watches)
	s.floor = watchedFloor{}
	return len(s.retired) > 0
}
