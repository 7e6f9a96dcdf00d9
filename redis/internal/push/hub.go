// Package push hears what the scripts tell on channels, over one connection for all who
// listen to a server. The backends for one server and for a majority of servers share it.
package push

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// ErrClosed is what those are told who listen when the hub is closed.
var ErrClosed = fmt.Errorf("%w: the backend is closed", backend.ErrClosed)

// Listener listens to one channel. The methods are called one at a time, under the mutex of
// the hub: they block on nothing and call no method of a hub.
type Listener interface {
	// Subscribed says that the subscription is in force, at first or again. What was told
	// in between is unknown.
	Subscribed()
	// Message is what somebody has told.
	Message(text string)
	// Broken says that the subscription is not in force any more. The hub makes it again.
	Broken()
	// Unreachable says that no connection could be made. The hub tries again if the
	// listener stays, and has forgotten it otherwise.
	Unreachable(err error) (stays bool)
	// End is the last word: the server refuses the subscription, or the hub was closed.
	End(err error)
}

// Times are the times of a hub.
type Times struct {
	Answer time.Duration // how long a watch waits to be confirmed
	Tick   time.Duration // how often the connection is looked after
	Linger time.Duration // a channel without listeners is kept so long
	Idle   time.Duration // and a connection without channels
	Ping   time.Duration // a connection that was silent for so long is pinged
	Dead   time.Duration // and given up
	Retry  time.Duration // the longest pause between attempts to connect
	Forbid time.Duration // and between those to do what the user is not permitted
}

var usualTimes = Times{
	Answer: 3 * time.Second,
	Tick:   100 * time.Millisecond,
	Linger: 100 * time.Millisecond,
	Idle:   3 * time.Second,
	Ping:   5 * time.Second,
	Dead:   15 * time.Second,
	Retry:  5 * time.Second,
	Forbid: time.Minute,
}

// Hub shares one subscription connection between all listeners of a server. While it has
// any, one goroutine writes to the connection and keeps it alive, and another reads from
// it. The mutex is never held during I/O.
type Hub struct {
	Times  Times       // not changed once somebody listens
	Denied func(error) // is told once that the user may not subscribe; or nil

	open   func(context.Context) *goredis.PubSub
	warned sync.Once
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // there are channels to subscribe to
	leave  chan struct{} // the address leads to another server now
	done   sync.WaitGroup

	mu       sync.Mutex
	topics   map[string]*topic
	fresh    []string // channels in state absent to which somebody listens
	running  bool
	closed   bool
	refused  error     // subscribing is not permitted, as the server said last
	refusals int       // in a row
	until    time.Time // it is not tried again before
}

// topic is a channel. At most one SUBSCRIBE or UNSUBSCRIBE for it is
// unanswered, so that every answer can be told.
type topic struct {
	state     topicState
	listeners map[Listener]struct{}
	empty     time.Time // since when nobody listens
}

type topicState int

const (
	absent      topicState = iota // the server does not know of it
	subscribing                   // SUBSCRIBE was sent
	subscribed                    // the server confirmed it
	leaving                       // UNSUBSCRIBE was sent
)

// New returns a hub that opens its connections so.
func New(open func(context.Context) *goredis.PubSub) *Hub {
	h := &Hub{open: open, Times: usualTimes, wake: make(chan struct{}, 1), leave: make(chan struct{}, 1), topics: map[string]*topic{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Subscribes reports whether the server may count this client among those that listen.
func (h *Hub) Subscribes(channel string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	return t != nil && t.state != absent
}

// Join adds the listener if the channel is subscribed to already. It is not told so.
func (h *Hub) Join(channel string, l Listener) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if h.closed || t == nil || t.state != subscribed {
		return false
	}
	t.listeners[l] = struct{}{}
	return true
}

// Add has the listener hear of the channel, and be told when it does.
func (h *Hub) Add(channel string, l Listener) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	t := h.topics[channel]
	if h.refused != nil && time.Now().Before(h.until) && (t == nil || t.state != subscribed) {
		return wire.Describe(context.Background(), h.refused)
	}
	if t == nil {
		t = &topic{listeners: map[Listener]struct{}{}}
		h.topics[channel] = t
		h.subscribeLater(channel)
	}
	t.listeners[l] = struct{}{}
	if t.state == subscribed {
		l.Subscribed()
	}
	if !h.running {
		h.running = true
		h.done.Add(1)
		go h.run()
	}
	return nil
}

// Confirmed waits for the one answer to a watch. Without one in time the error is late.
func (h *Hub) Confirmed(ctx context.Context, answer <-chan error, late error) error {
	limit := time.NewTimer(h.Times.Answer)
	defer limit.Stop()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-limit.C:
		return late
	}
}

// ReplaceHint puts the hint in the place of one that was not read yet. The channel holds one, and
// nobody else sends at the time.
func ReplaceHint(hints chan backend.Hint, hint backend.Hint) {
	select {
	case <-hints:
	default:
	}
	hints <- hint
}

// Remove ends what Add or Join began.
func (h *Hub) Remove(channel string, l Listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil {
		return
	}
	delete(t.listeners, l)
	if len(t.listeners) > 0 {
		return
	}
	t.empty = time.Now()
	if t.state == absent {
		delete(h.topics, channel)
	}
}

// Moved has the connection replaced: the address leads to another server than before.
func (h *Hub) Moved() {
	select {
	case h.leave <- struct{}{}:
	default:
	}
}

func (h *Hub) subscribeLater(channel string) {
	h.fresh = append(h.fresh, channel)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Close ends every listener and waits a moment for the goroutines. One that waits for a
// connection ends with the timeouts of the client, since go-redis does not look at the
// context meanwhile.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for channel, t := range h.topics {
		for l := range t.listeners {
			l.End(ErrClosed)
		}
		delete(h.topics, channel)
	}
	h.mu.Unlock()
	h.cancel()
	wire.WaitBriefly(&h.done)
}

// take returns the channels to subscribe to and marks them.
func (h *Hub) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var channels []string
	for _, channel := range h.fresh {
		if t := h.topics[channel]; t != nil && t.state == absent {
			t.state = subscribing
			channels = append(channels, channel)
		}
	}
	h.fresh = nil
	return channels
}

// expire returns the channels to which nobody listens any more and marks them.
func (h *Hub) expire(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var channels []string
	for channel, t := range h.topics {
		if t.state == subscribed && len(t.listeners) == 0 && now.Sub(t.empty) > h.Times.Linger {
			t.state = leaving
			channels = append(channels, channel)
		}
	}
	return channels
}

// idle reports that there is no channel to look after.
func (h *Hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics) == 0
}

// stop ends the hub's goroutine, unless there is something to do for it.
func (h *Hub) stop() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		h.running = false
	}
	return !h.running
}

// onSubscribed is the server's answer to a SUBSCRIBE. It returns false for one
// that nobody sent: the client library has replaced the connection.
func (h *Hub) onSubscribed(channel string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil {
		return true
	}
	if t.state != subscribing {
		return false
	}
	t.state = subscribed
	h.refused, h.refusals = nil, 0
	for l := range t.listeners {
		l.Subscribed()
	}
	return true
}

// onUnsubscribed is the server's answer to an UNSUBSCRIBE.
func (h *Hub) onUnsubscribed(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil || t.state != leaving {
		return
	}
	if len(t.listeners) == 0 {
		delete(h.topics, channel)
		return
	}
	t.state = absent
	h.subscribeLater(channel)
}

func (h *Hub) onMessage(channel, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[channel]; t != nil {
		for l := range t.listeners {
			l.Message(text)
		}
	}
}

// onBroken has every channel subscribed to again, on the next connection.
func (h *Hub) onBroken() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		for l := range t.listeners {
			l.Broken()
		}
	}
	h.reset()
}

// onUnreachable has every channel subscribed to later, for those who stay.
func (h *Hub) onUnreachable(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		for l := range t.listeners {
			if !l.Unreachable(err) {
				delete(t.listeners, l)
			}
		}
	}
	h.reset()
}

// onRefused is an error that the server gave to a SUBSCRIBE, without saying to
// which. It ends every watch that waits for a confirmation. A missing permission is
// asked for now and then only: each answer costs a connection.
func (h *Hub) onRefused(err error) {
	forbidden := errors.Is(wire.Sentinel(err), backend.ErrPermanent)
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if forbidden && h.Denied != nil && !closed {
		h.warned.Do(func() { h.Denied(err) })
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if forbidden {
		h.refused = err
		h.until = time.Now().Add(min(h.Times.Forbid, time.Second<<min(h.refusals, 6)))
		h.refusals++
	}
	for _, t := range h.topics {
		if t.state != subscribing {
			continue
		}
		for l := range t.listeners {
			l.End(err)
			delete(t.listeners, l)
		}
	}
}

// reset forgets what the server was told. The caller holds the mutex.
func (h *Hub) reset() {
	h.fresh = nil
	for channel, t := range h.topics {
		t.state = absent
		if len(t.listeners) == 0 {
			delete(h.topics, channel)
			continue
		}
		h.subscribeLater(channel)
	}
}
