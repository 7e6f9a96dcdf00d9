package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/push"
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
	w := newWatcher(!b.cluster, "")
	if err := b.hub.Add(channel, w); err != nil {
		return nil, fmt.Errorf("redislock: watch key %q: %w", key, err)
	}
	if err := b.hub.Confirmed(ctx, w.confirmed, errNoAnswer); err != nil {
		b.hub.Remove(channel, w)
		return nil, fmt.Errorf("redislock: watch key %q: %w", key, wire.Describe(ctx, err))
	}
	context.AfterFunc(ctx, func() { b.hub.Remove(channel, w) })
	return w.signals, nil
}

var (
	errBackendClosed = push.ErrClosed
	errNoAnswer      = fmt.Errorf("%w: the server did not confirm the subscription in time", backend.ErrUnavailable)
)

// watcher is one watch: it implements push.Listener.
type watcher struct {
	counts    bool              // the messages count the clients that watch
	tag       string            // of a place in a queue, whose turn is all that matters here
	signals   chan backend.Hint // holds one, the last
	confirmed chan error        // holds the one answer to Watch
	answered  bool
	ended     bool
}

func newWatcher(counts bool, tag string) *watcher {
	return &watcher{counts: counts, tag: tag, signals: make(chan backend.Hint, 1), confirmed: make(chan error, 1)}
}

func (w *watcher) answer(err error) {
	if !w.answered {
		w.answered = true
		w.confirmed <- err
	}
}

func (w *watcher) signal(hint backend.Hint) {
	if !w.ended {
		push.Hint(w.signals, hint)
	}
}

// Subscribed implements push.Listener. What happened while there was no subscription is
// unknown.
func (w *watcher) Subscribed() {
	if w.answered {
		w.signal(backend.Hint{})
	}
	w.answer(nil)
}

// Message is a release. The text is how many subscribers the releasing
// client's server had, which is all of them only where there is one server;
// in the fair mode it is "@" and the tag of the place whose turn it is.
func (w *watcher) Message(text string) {
	var hint backend.Hint
	tag, forOne := strings.CutPrefix(text, "@")
	if forOne && w.tag != "" && w.tag != tag {
		return
	}
	if n, err := strconv.Atoi(text); err == nil && n > 0 && w.counts {
		hint.Watchers = n
	}
	w.signal(hint)
}

// Broken signals a watch that was in force.
func (w *watcher) Broken() {
	if w.answered {
		w.signal(backend.Hint{})
	}
}

// Unreachable ends a watch that was not in force yet.
func (w *watcher) Unreachable(err error) (stays bool) {
	stays = w.answered
	w.answer(err)
	return stays
}

// End closes the signals: the watch broke.
func (w *watcher) End(err error) {
	w.answer(err)
	if !w.ended {
		w.ended = true
		close(w.signals)
	}
}
