package redlock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/push"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// Watch subscribes to the releases of the key on every node. All watches of a Locker share
// one connection to each node, which is opened by the first of them and closed a few seconds
// after the last. The watch is in force once a majority has confirmed it, and the others
// join when they can. It breaks when fewer than a majority can be heard.
//
// A hold has ended when a majority has told so of the same acquisition: then a request for
// the key finds a majority free. Nodes that did not have the hold tell it too if the key is
// free there, so that any majority which has got the release will do.
func (b *majority) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redlock: watch key %q: %w", key, err)
	}
	w := &watch{
		quorum: b.quorum, nodes: len(b.nodes),
		hints: make(chan backend.Hint, 1), confirmed: make(chan error, 1),
	}
	channels := [...]string{wire.PartOf(b.prefix, key, b.part), b.record(key)}
	for i, h := range b.hubs {
		w.ears[i] = ear{w: w, node: i, channels: len(channels)}
		for _, channel := range channels {
			if err := h.Add(channel, &w.ears[i]); err != nil {
				w.ears[i].End(err)
				break
			}
		}
	}
	leave := func() {
		for i, h := range b.hubs {
			for _, channel := range channels {
				h.Remove(channel, &w.ears[i])
			}
		}
	}
	if err := b.hubs[0].Confirmed(ctx, w.confirmed, errNoAnswer); err != nil {
		leave()
		return nil, fmt.Errorf("redlock: watch key %q: %w", key, wire.Describe(ctx, err))
	}
	context.AfterFunc(ctx, leave)
	return w.hints, nil
}

var errNoAnswer = fmt.Errorf("%w: no majority of the nodes confirmed the subscription in time", backend.ErrUnavailable)

// watch puts together what the nodes tell about one key.
type watch struct {
	quorum, nodes int
	hints         chan backend.Hint // holds one, the last
	confirmed     chan error        // holds the one answer to Watch
	ears          [maxNodes]ear     // the listeners at the nodes

	mu       sync.Mutex // taken under those of the hubs
	hears    [maxNodes]hearing
	answered bool
	broken   bool
	ended    [rememberedEnds]end
	next     int // of ended, to be written
}

// rememberedEnds is how many holds a watch hears the end of at a time: more than one, since
// the nodes are not at the same.
const rememberedEnds = 8

// end is what is known of the end of one hold.
type end struct {
	name     string
	told     [maxNodes]bool
	watchers int
	hinted   bool
}

// hearing is whether a node is heard.
type hearing uint8

const (
	unknown hearing = iota // it has not answered yet
	heard
	deaf // the subscription is to be made again
	gone // it was refused
)

// ear is a watch's listener at one node: it implements push.Listener.
type ear struct {
	w        *watch
	node     int
	channels int // to which it listens
	hears    int // of those
}

// Subscribed implements push.Listener. What the node told while it was not heard may be
// what a majority lacks.
func (e *ear) Subscribed() {
	if e.hears++; e.hears == e.channels {
		e.become(heard, nil)
	}
}

// Broken implements push.Listener.
func (e *ear) Broken() {
	e.hears = 0
	e.become(deaf, errUnheard)
}

// Unreachable implements push.Listener.
func (e *ear) Unreachable(err error) (stays bool) {
	e.become(deaf, err)
	return true
}

// End implements push.Listener.
func (e *ear) End(err error) { e.become(gone, err) }

var errUnheard = fmt.Errorf("%w: the subscription broke", backend.ErrUnavailable)

func (e *ear) become(h hearing, err error) {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.hears[e.node]
	w.hears[e.node] = h
	hear, lost := 0, 0
	for _, x := range w.hears[:w.nodes] {
		switch x {
		case heard:
			hear++
		case deaf, gone:
			lost++
		}
	}
	switch {
	case w.broken:
	case !w.answered && hear >= w.quorum:
		w.answered = true
		w.confirmed <- nil
	case !w.answered && lost > w.nodes-w.quorum, w.answered && hear < w.quorum:
		if !w.answered {
			w.answered = true
			w.confirmed <- err
		}
		w.broken = true
		close(w.hints)
	case before == heard || before == deaf && h == heard:
		w.hintAtUnfinished()
	}
}

// hintAtUnfinished gives a hint if a part of the nodes has told of an end: what another one
// told was perhaps not heard. The mutex is held.
func (w *watch) hintAtUnfinished() {
	some := false
	for i := range w.ended {
		e := &w.ended[i]
		some = some || e.name != "" && !e.hinted
		e.hinted = true
	}
	if some {
		w.hint(backend.Hint{})
	}
}

// hint gives the hint while the watch is whole. The mutex is held.
func (w *watch) hint(h backend.Hint) {
	if !w.broken {
		push.ReplaceHint(w.hints, h)
	}
}

// Message is the end of a hold on the node: its name, and how many listen there.
func (e *ear) Message(text string) {
	name, number, ok := strings.Cut(text, "|")
	watchers, err := strconv.Atoi(number)
	if !ok || name == "" || err != nil {
		return
	}
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	end := w.endOf(name, e.node)
	end.told[e.node] = true
	end.watchers = max(end.watchers, watchers)
	told := 0
	for _, t := range end.told {
		if t {
			told++
		}
	}
	if told >= w.quorum && !end.hinted {
		end.hinted = true
		w.hint(backend.Hint{Watchers: end.watchers})
	}
}

// endOf is what is known of the end of the hold of that name. What a node tells for a second
// time is the end of another hold of the same acquisition. The mutex is held.
func (w *watch) endOf(name string, node int) *end {
	for i := range w.ended {
		if e := &w.ended[i]; e.name == name {
			if e.told[node] {
				*e = end{name: name}
			}
			return e
		}
	}
	e := &w.ended[w.next]
	w.next = (w.next + 1) % rememberedEnds
	*e = end{name: name}
	return e
}
