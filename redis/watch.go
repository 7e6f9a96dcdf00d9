package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// Watch subscribes to the releases of the key. All watches of a backend share
// one connection, which is opened by the first of them and closed a few seconds
// after the last. When it breaks, every watch is signalled, and again when it is
// back. Watch fails when the server has not confirmed within three seconds.
func (b *redisBackend) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redislock: watch key %q: %w", key, err)
	}
	channel := b.buckets.namesOf(key).record()
	w, err := b.hub.add(channel, "")
	if err != nil {
		return nil, fmt.Errorf("redislock: watch key %q: %w", key, err)
	}
	limit := time.NewTimer(b.hub.times.answer)
	defer limit.Stop()
	select {
	case err = <-w.confirmed:
	case <-ctx.Done():
		err = ctx.Err()
	case <-limit.C:
		err = errNoAnswer
	}
	if err != nil {
		b.hub.remove(channel, w)
		return nil, fmt.Errorf("redislock: watch key %q: %w", key, wire.Describe(ctx, err))
	}
	context.AfterFunc(ctx, func() { b.hub.remove(channel, w) })
	return w.signals, nil
}

var (
	errBackendClosed = fmt.Errorf("%w: the backend is closed", backend.ErrClosed)
	errNoAnswer      = fmt.Errorf("%w: the server did not confirm the subscription in time", backend.ErrUnavailable)
)

// hubTimes are the times of a hub.
type hubTimes struct {
	answer time.Duration // how long a watch waits to be confirmed
	tick   time.Duration // how often the connection is looked after
	linger time.Duration // a channel without watches is kept so long
	idle   time.Duration // and a connection without channels
	ping   time.Duration // a connection that was silent for so long is pinged
	dead   time.Duration // and given up
	retry  time.Duration // the longest pause between attempts to connect
	forbid time.Duration // and between those to do what the user is not permitted
}

var usualTimes = hubTimes{
	answer: 3 * time.Second,
	tick:   100 * time.Millisecond,
	linger: 100 * time.Millisecond,
	idle:   3 * time.Second,
	ping:   5 * time.Second,
	dead:   15 * time.Second,
	retry:  5 * time.Second,
	forbid: time.Minute,
}

// hub shares one subscription connection between all watches. While it has
// watches, one goroutine writes to the connection and keeps it alive, and
// another reads from it. The mutex is never held during I/O.
type hub struct {
	open   func(context.Context) *goredis.PubSub
	warn   func(error) // is told once that the user may not subscribe
	warned sync.Once
	counts bool // the messages count the clients that watch
	times  hubTimes
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // there are channels to subscribe to
	leave  chan struct{} // the address leads to another server now
	done   sync.WaitGroup

	mu       sync.Mutex
	topics   map[string]*topic
	fresh    []string // channels in state absent that somebody watches
	running  bool
	closed   bool
	refused  error     // subscribing is not permitted, as the server said last
	refusals int       // in a row
	until    time.Time // it is not tried again before
}

// topic is a channel. At most one SUBSCRIBE or UNSUBSCRIBE for it is
// unanswered, so that every answer can be told.
type topic struct {
	state    topicState
	watchers map[*watcher]struct{}
	empty    time.Time // since when nobody watches
}

type topicState int

const (
	absent      topicState = iota // the server does not know of it
	subscribing                   // SUBSCRIBE was sent
	subscribed                    // the server confirmed it
	leaving                       // UNSUBSCRIBE was sent
)

// watcher is one watch. Its channels are written to under the hub's mutex.
type watcher struct {
	tag       string            // of a place in a queue, whose turn is all that matters here
	signals   chan backend.Hint // holds one, the last
	confirmed chan error        // holds the one answer to Watch
	answered  bool
	ended     bool
}

func (w *watcher) answer(err error) {
	if !w.answered {
		w.answered = true
		w.confirmed <- err
	}
}

// signal puts the hint in the place of one that was not read yet.
func (w *watcher) signal(hint backend.Hint) {
	if w.ended {
		return
	}
	select {
	case <-w.signals:
	default:
	}
	w.signals <- hint
}

// end closes the signals: the watch broke.
func (w *watcher) end() {
	if !w.ended {
		w.ended = true
		close(w.signals)
	}
}

func newHub(counts bool, open func(context.Context) *goredis.PubSub) *hub {
	h := &hub{open: open, counts: counts, times: usualTimes, wake: make(chan struct{}, 1), leave: make(chan struct{}, 1), topics: map[string]*topic{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// subscribes reports whether the server may count this client among those that watch.
func (h *hub) subscribes(channel string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	return t != nil && t.state != absent
}

// join is a watch on a channel that is subscribed to already, or nil.
func (h *hub) join(channel, tag string) *watcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if h.closed || t == nil || t.state != subscribed {
		return nil
	}
	w := newWatcher(tag)
	w.answer(nil)
	if err := <-w.confirmed; err != nil {
		return nil
	}
	t.watchers[w] = struct{}{}
	return w
}

func newWatcher(tag string) *watcher {
	return &watcher{tag: tag, signals: make(chan backend.Hint, 1), confirmed: make(chan error, 1)}
}

func (h *hub) add(channel, tag string) (*watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errBackendClosed
	}
	t := h.topics[channel]
	if h.refused != nil && time.Now().Before(h.until) && (t == nil || t.state != subscribed) {
		return nil, wire.Describe(context.Background(), h.refused)
	}
	w := newWatcher(tag)
	if t == nil {
		t = &topic{watchers: map[*watcher]struct{}{}}
		h.topics[channel] = t
		h.subscribeLater(channel)
	}
	t.watchers[w] = struct{}{}
	if t.state == subscribed {
		w.answer(nil)
	}
	if !h.running {
		h.running = true
		h.done.Add(1)
		go h.run()
	}
	return w, nil
}

func (h *hub) remove(channel string, w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil {
		return
	}
	delete(t.watchers, w)
	if len(t.watchers) > 0 {
		return
	}
	t.empty = time.Now()
	if t.state == absent {
		delete(h.topics, channel)
	}
}

// moved has the connection replaced: the address leads to another server than before.
func (h *hub) moved() {
	select {
	case h.leave <- struct{}{}:
	default:
	}
}

func (h *hub) subscribeLater(channel string) {
	h.fresh = append(h.fresh, channel)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// close ends every watch and waits a moment for the goroutines. One that waits for a
// connection ends with the timeouts of the client, since go-redis does not look at the
// context meanwhile.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	for channel, t := range h.topics {
		for w := range t.watchers {
			w.answer(errBackendClosed)
			w.end()
		}
		delete(h.topics, channel)
	}
	h.mu.Unlock()
	h.cancel()
	waitBriefly(&h.done)
}

// take returns the channels to subscribe to and marks them.
func (h *hub) take() []string {
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

// expire returns the channels that nobody watches any more and marks them.
func (h *hub) expire(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var channels []string
	for channel, t := range h.topics {
		if t.state == subscribed && len(t.watchers) == 0 && now.Sub(t.empty) > h.times.linger {
			t.state = leaving
			channels = append(channels, channel)
		}
	}
	return channels
}

// idle reports that there is no channel to look after.
func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics) == 0
}

// stop ends the hub's goroutine, unless there is something to do for it.
func (h *hub) stop() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		h.running = false
	}
	return !h.running
}

// onSubscribed is the server's answer to a SUBSCRIBE. It returns false for one
// that nobody sent: the client library has replaced the connection.
func (h *hub) onSubscribed(channel string) bool {
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
	for w := range t.watchers {
		if w.answered {
			w.signal(backend.Hint{}) // what happened while there was no subscription is unknown
		}
		w.answer(nil)
	}
	return true
}

// onUnsubscribed is the server's answer to an UNSUBSCRIBE.
func (h *hub) onUnsubscribed(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil || t.state != leaving {
		return
	}
	if len(t.watchers) == 0 {
		delete(h.topics, channel)
		return
	}
	t.state = absent
	h.subscribeLater(channel)
}

// onMessage is a release. The text is how many subscribers the releasing
// client's server had, which is all of them only where there is one server;
// in the fair mode it is "@" and the tag of the place whose turn it is.
func (h *hub) onMessage(channel, text string) {
	var hint backend.Hint
	tag, forOne := strings.CutPrefix(text, "@")
	if n, err := strconv.Atoi(text); err == nil && n > 0 && h.counts {
		hint.Watchers = n
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[channel]; t != nil {
		for w := range t.watchers {
			if !forOne || w.tag == "" || w.tag == tag {
				w.signal(hint)
			}
		}
	}
}

// onBroken has every channel subscribed to again, on the next connection, and
// signals the watches that were in force.
func (h *hub) onBroken() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		for w := range t.watchers {
			if w.answered {
				w.signal(backend.Hint{})
			}
		}
	}
	h.reset()
}

// onUnreachable has every channel subscribed to later, and ends the watches that
// were not in force yet.
func (h *hub) onUnreachable(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		for w := range t.watchers {
			if !w.answered {
				w.answer(err)
				delete(t.watchers, w)
			}
		}
	}
	h.reset()
}

// onRefused is an error that the server gave to a SUBSCRIBE, without saying to
// which. It ends every watch that waits for a confirmation. A missing permission is
// asked for now and then only: each answer costs a connection.
func (h *hub) onRefused(err error) {
	forbidden := errors.Is(wire.Sentinel(err), backend.ErrPermanent)
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if forbidden && h.warn != nil && !closed {
		h.warned.Do(func() { h.warn(err) })
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if forbidden {
		h.refused = err
		h.until = time.Now().Add(min(h.times.forbid, time.Second<<min(h.refusals, 6)))
		h.refusals++
	}
	for _, t := range h.topics {
		if t.state != subscribing {
			continue
		}
		for w := range t.watchers {
			w.answer(err)
			w.end()
			delete(t.watchers, w)
		}
	}
}

// reset forgets what the server was told. The caller holds the mutex.
func (h *hub) reset() {
	h.fresh = nil
	for channel, t := range h.topics {
		t.state = absent
		if len(t.watchers) == 0 {
			delete(h.topics, channel)
			continue
		}
		h.subscribeLater(channel)
	}
}
