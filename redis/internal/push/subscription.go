package push

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// subscription is one connection of a hub. It is never mended: when it breaks
// the hub opens another one, so that no reconnection goes unnoticed.
type subscription struct {
	ctx    context.Context
	cancel context.CancelFunc
	pubsub *goredis.PubSub
	broken chan struct{} // closed when the reader has ended
	heard  atomic.Bool   // the server said something since the last look
}

// run keeps a connection while somebody listens.
func (h *Hub) run() {
	defer h.done.Done()
	for failures := 0; !h.stop(); {
		channels := h.take()
		if len(channels) == 0 {
			continue
		}
		sub, err := h.connect(channels)
		if err != nil {
			h.onUnreachable(err)
			failures++
			h.rest(failures)
			continue
		}
		failures = 0
		h.serve(sub)
		sub.end()
		h.onBroken()
	}
}

// rest waits before the next attempt to connect, unless there is a new channel,
// of which somebody wants to know.
func (h *Hub) rest(failures int) {
	if h.idle() {
		return
	}
	select {
	case <-h.wake: // of those who know already
	default:
	}
	pause := min(h.Times.Retry, 100*time.Millisecond<<min(failures, 6))
	timer := time.NewTimer(pause/2 + rand.N(pause/2))
	defer timer.Stop()
	select {
	case <-h.ctx.Done():
	case <-h.wake:
	case <-timer.C:
	}
}

// connect opens a connection that subscribes to the channels first.
func (h *Hub) connect(channels []string) (*subscription, error) {
	select {
	case <-h.leave: // the one before
	default:
	}
	sub := &subscription{broken: make(chan struct{})}
	sub.ctx, sub.cancel = context.WithCancel(h.ctx)
	sub.pubsub = h.open(sub.ctx)
	if err := sub.pubsub.Subscribe(sub.ctx, channels...); err != nil {
		sub.cancel()
		_ = sub.pubsub.Close()
		return nil, err
	}
	go h.read(sub)
	return sub, nil
}

// end closes the connection and waits for its reader.
func (s *subscription) end() {
	s.cancel() // first, since it ends what Close would wait for
	_ = s.pubsub.Close()
	<-s.broken
}

// serve writes to the connection until it breaks or was idle for long enough.
func (h *Hub) serve(sub *subscription) {
	ticker := time.NewTicker(h.Times.Tick)
	defer ticker.Stop()
	busy := time.Now()
	heard := busy
	for {
		select {
		case <-sub.broken:
			return
		case <-h.ctx.Done():
			return
		case <-h.leave:
			return
		case <-h.wake:
			if channels := h.take(); len(channels) > 0 {
				if sub.pubsub.Subscribe(sub.ctx, channels...) != nil {
					return
				}
			}
		case <-ticker.C:
			now := time.Now()
			if !h.idle() {
				busy = now
			} else if now.Sub(busy) > h.Times.Idle {
				return
			}
			if channels := h.expire(now); len(channels) > 0 {
				if sub.pubsub.Unsubscribe(sub.ctx, channels...) != nil {
					return
				}
			}
			if sub.heard.Swap(false) {
				heard = now
			}
			switch silence := now.Sub(heard); {
			case silence > h.Times.Dead:
				return
			case silence > h.Times.Ping:
				if sub.pubsub.Ping(sub.ctx) != nil {
					return
				}
			}
		}
	}
}

// read takes in what the server says until the connection breaks.
func (h *Hub) read(sub *subscription) {
	defer close(sub.broken)
	for {
		message, err := sub.pubsub.Receive(sub.ctx)
		if err != nil {
			var refusal goredis.Error
			if errors.As(err, &refusal) {
				h.onRefused(err)
			}
			return
		}
		sub.heard.Store(true)
		switch m := message.(type) {
		case *goredis.Message:
			h.onMessage(m.Channel, m.Payload)
		case *goredis.Subscription:
			switch m.Kind {
			case "subscribe":
				if !h.onSubscribed(m.Channel) {
					return
				}
			case "unsubscribe":
				h.onUnsubscribed(m.Channel)
			}
		}
	}
}
