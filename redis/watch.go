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

// Watch subscribes to the releases of the key, those of which all are told and those that
// only a part of a crowd is told of. All watches of a backend share
// one connection, which is opened by the first of them and closed a few seconds
// after the last. When it breaks, every watch is signalled, and again when it is
// back. Watch fails when the server has not confirmed within three seconds.
func (b *redisBackend) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redislock: watch key %q: %w", key, err)
	}
	channels := b.channelsOf(key)
	w := newWatcher(!b.cluster, "")
	w.channels = len(channels)
	end := func() {
		for _, channel := range channels {
			b.hub.Remove(channel, w)
		}
	}
	for _, channel := range channels {
		if err := b.hub.Add(channel, w); err != nil {
			end()
			return nil, fmt.Errorf("redislock: watch key %q: %w", key, err)
		}
	}
	if err := b.hub.Confirmed(ctx, w.confirmed, errNoAnswer); err != nil {
		end()
		return nil, fmt.Errorf("redislock: watch key %q: %w", key, wire.Describe(ctx, err))
	}
	context.AfterFunc(ctx, end)
	return w.signals, nil
}

// channelsOf are those on which a release is told. The server counts those who listen to
// the last, and each of them listens to the others already.
func (b *redisBackend) channelsOf(key string) []string {
	n := b.buckets.namesOf(key)
	if b.cluster {
		return []string{n.record()}
	}
	return []string{n.part(b.part), n.record()}
}

var (
	errBackendClosed = push.ErrClosed
	errNoAnswer      = fmt.Errorf("%w: the server did not confirm the subscription in time", backend.ErrUnavailable)
)

// watcher is one watch: it implements push.Listener.
type watcher struct {
	counts    bool              // the messages count the clients that were told
	channels  int               // to which it listens
	heard     int               // of those, have been confirmed
	tag       string            // of a place in a queue, whose turn is all that matters here
	signals   chan backend.Hint // holds one, the last
	confirmed chan error        // holds the one answer to Watch
	answered  bool
	ended     bool
}

func newWatcher(counts bool, tag string) *watcher {
	return &watcher{counts: counts, tag: tag, channels: 1, signals: make(chan backend.Hint, 1), confirmed: make(chan error, 1)}
}

func (w *watcher) answer(err error) {
	if !w.answered {
		w.answered = true
		w.confirmed <- err
	}
}

func (w *watcher) signal(hint backend.Hint) {
	if !w.ended {
		push.ReplaceHint(w.signals, hint)
	}
}

// Subscribed implements push.Listener. What happened while there was no subscription is
// unknown.
func (w *watcher) Subscribed() {
	if w.answered {
		w.signal(backend.Hint{})
		return
	}
	if w.heard++; w.heard == w.channels {
		w.answer(nil)
	}
}

// Message is a release. The text is how many subscribers of the releasing
// client's server are told, which is all who are only where there is one server;
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
	w.heard = 0
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
