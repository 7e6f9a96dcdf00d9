package schedule

import (
	"math"

	"github.com/mortiselock/lock/backend"
)

// Timeline orders what has to happen by its instant: a heap with four children to a
// node, whose instants lie side by side, since with many entries most of the time goes
// into reading memory.
type Timeline[E any] struct{ items []timed[E] }

type timed[E any] struct {
	at    backend.Instant
	place *int32 // where in items it is, plus one; zero: it is not
	e     E
}

// keptEmpty is for how many entries there is room in a timeline that has none any more.
const keptEmpty = 64

// Never is an instant that no clock reaches.
const Never = backend.Instant(math.MaxInt64)

// First is the instant of the first entry, or Never.
func (t *Timeline[E]) First() backend.Instant {
	if len(t.items) == 0 {
		return Never
	}
	return t.items[0].at
}

// Peek returns the first entry.
func (t *Timeline[E]) Peek() E { return t.items[0].e }

// All returns every entry, in no particular order.
func (t *Timeline[E]) All() []E {
	out := make([]E, len(t.items))
	for i, item := range t.items {
		out[i] = item.e
	}
	return out
}

// Set adds the entry, moves it to its instant, or takes it out when that is Never.
// place belongs to the entry and to nobody else.
func (t *Timeline[E]) Set(e E, place *int32, at backend.Instant) {
	i := int(*place) - 1
	switch {
	case at == Never && i < 0:
	case at == Never:
		t.remove(i)
	case i < 0:
		t.items = append(t.items, timed[E]{})
		t.up(len(t.items)-1, timed[E]{at, place, e})
	default:
		t.move(i, timed[E]{at, place, e})
	}
}

// Pop takes out the first entry.
func (t *Timeline[E]) Pop() E {
	e := t.items[0].e
	t.remove(0)
	return e
}

func (t *Timeline[E]) remove(i int) {
	*t.items[i].place = 0
	last := len(t.items) - 1
	x := t.items[last]
	t.items[last] = timed[E]{}
	t.items = t.items[:last]
	if i < last {
		t.move(i, x)
	}
	if len(t.items) == 0 && cap(t.items) > keptEmpty {
		t.items = nil
	}
}

// move puts the item to where it belongs, given that place i is free for it.
func (t *Timeline[E]) move(i int, x timed[E]) {
	if i > 0 && x.at < t.items[(i-1)/4].at {
		t.up(i, x)
	} else {
		t.down(i, x)
	}
}

func (t *Timeline[E]) up(i int, x timed[E]) {
	for i > 0 {
		parent := (i - 1) / 4
		if t.items[parent].at <= x.at {
			break
		}
		t.put(i, t.items[parent])
		i = parent
	}
	t.put(i, x)
}

func (t *Timeline[E]) down(i int, x timed[E]) {
	for {
		least := 4*i + 1
		if least >= len(t.items) {
			break
		}
		for c := least + 1; c < min(4*i+5, len(t.items)); c++ {
			if t.items[c].at < t.items[least].at {
				least = c
			}
		}
		if x.at <= t.items[least].at {
			break
		}
		t.put(i, t.items[least])
		i = least
	}
	t.put(i, x)
}

func (t *Timeline[E]) put(i int, x timed[E]) {
	t.items[i] = x
	*x.place = int32(i + 1) //nolint:gosec // fewer than 2^31 entries
}
