package conformance

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// history keeps the calls of one case: who called what, when, and what came
// back, on one monotonic clock.
type history struct {
	base time.Time
	keys string // begins every key of the case; it is left out where it would be repeated

	mu      sync.Mutex
	events  []*event          // the last maxEvents, in the order of their ends
	last    map[string]*event // the last of each key
	pending map[*event]struct{}
	unheard map[asker]time.Duration // when a client last lost the answer to a request for a key
	dropped int
	longest time.Duration // that a request took, without the faults that were put in
	waited  time.Duration // that an undisturbed call took that had no answer
	pace    *pace         // nil: nobody wants to know
	used    *usedKeys     // nil: nobody wants to know
}

const (
	maxEvents  = 3000
	showEvents = 20
)

// event is one call, a note between calls, or several refusals in a row.
type event struct {
	who, op, key string
	from, to     time.Duration
	result       string
	err          error // or what came back, where that is not told in result
	refused      bool
	disturbed    bool // a fault that was put in, and no call
	count        int  // of refusals, or of faults
}

// asker is a client that asks for a key.
type asker struct{ who, key string }

func newHistory(base time.Time) *history {
	return &history{
		base: base, last: map[string]*event{}, pending: map[*event]struct{}{}, unheard: map[asker]time.Duration{},
	}
}

// now is the time since the case began.
func (h *history) now() time.Duration { return time.Since(h.base) }

// at is t as time since the case began.
func (h *history) at(t time.Time) time.Duration { return t.Sub(h.base) }

// begin records that a call was made.
func (h *history) begin(who, op, key string) *event {
	ev := &event{who: who, op: op, key: key, from: h.now(), to: -1}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[ev] = struct{}{}
	return ev
}

// end records that the call returned.
func (h *history) end(ev *event, result string) { h.finish(ev, result, nil) }

// ended records that a call for a key returned with an error. Most of them are never
// shown, so that none is made a text of before.
func (h *history) ended(ev *event, err error) { h.finish(ev, outcome(nil), err) }

func (h *history) finish(ev *event, result string, err error) {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	ev.to, ev.result, ev.err, ev.refused = now, result, err, errors.Is(err, lock.ErrHeld)
	delete(h.pending, ev)
	h.add(ev)
}

func (h *history) tookOrFailed(ev *event, err error) {
	if err == nil {
		h.took(ev)
	} else {
		h.failed(ev, err)
	}
}

// neverAnswered is the longest that an undisturbed call took that had no answer.
func (h *history) neverAnswered() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waited
}

// failed looks whether a call that nothing disturbed failed for want of an answer.
func (h *history) failed(ev *event, err error) {
	if noAnswer(err) {
		h.mu.Lock()
		h.waited = max(h.waited, ev.to-ev.from)
		h.mu.Unlock()
	}
}

// took tells how long a request took, which nothing disturbed and which was answered
// well. Refusals are left out: a lock may wait before it refuses, and be wrong in it.
func (h *history) took(ev *event) {
	switch ev.op {
	case "TryAcquire", "Try", "Renew", "Release":
		h.served(ev.to - ev.from)
	}
}

// answered is took for what a Locker asked beneath the faults that are put in: what it
// does by itself, such as its renewals, is seen nowhere else.
func (h *history) answered(op faultlock.Op, _ string, d time.Duration, err error) {
	switch op {
	case faultlock.OpTry, faultlock.OpRenew, faultlock.OpRelease:
		if err == nil {
			h.served(d)
		}
	}
}

func (h *history) served(d time.Duration) {
	h.mu.Lock()
	h.longest = max(h.longest, d)
	h.mu.Unlock()
	if h.pace != nil {
		h.pace.add(d)
	}
}

// note records something that is not a call.
func (h *history) note(who, key, text string) {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(&event{who: who, op: text, key: key, from: now, to: now})
}

// faultWords say what the names of faults mean.
var faultWords = strings.NewReplacer(
	"fail before", "refused, and not sent", "fail after", "applied, and the answer lost", "drop", "lost on its way",
	"delay before", "sent late", "delay after", "applied, and answered late", "duplicate", "sent twice",
	"apply late", "answered with an error, and sent late", "hang before", "hanging, and not sent", "hang after", "applied, and hanging",
)

// disturb records that a request met a fault.
func (h *history) disturb(who, key string, op faultlock.Op, fault string) {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if fault == faultlock.FailAfter().String() {
		switch op {
		case faultlock.OpTry, faultlock.OpEnqueue, faultlock.OpWait, faultlock.OpHandOver:
			h.unheard[asker{who, key}] = now
		}
	}
	ev := &event{who: "network", op: fmt.Sprintf("the %s of %s: %s", op, who, faultWords.Replace(fault)), key: key, from: now, to: now, disturbed: true}
	if last := h.last[key]; last != nil && last.disturbed && last.op == ev.op {
		last.to = now
		last.count++
		return
	}
	h.add(ev)
}

// lostAnswer reports whether the client has lost the answer to a request for the key
// since then: it may have been granted without anybody knowing.
func (h *history) lostAnswer(who, key string, since time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, lost := h.unheard[asker{who, key}]
	return lost && at >= since
}

func (h *history) add(ev *event) {
	ev.count = 1
	h.used.add(ev.key)
	// Refusals in a row are one event, so that polling does not hide the grants.
	if last := h.last[ev.key]; last != nil && last.refused && ev.refused && last.op == ev.op {
		last.to, last.result, last.err = ev.to, ev.result, ev.err
		last.count++
		if last.who != ev.who {
			last.who = "several"
		}
		return
	}
	if len(h.events) >= maxEvents {
		n := maxEvents / 2
		for _, old := range h.events[:n] {
			h.dropped += old.count
			if h.last[old.key] == old {
				delete(h.last, old.key)
			}
		}
		h.events = append(h.events[:0], h.events[n:]...)
	}
	h.events = append(h.events, ev)
	h.last[ev.key] = ev
}

// idle is for how long the case has made no progress: the age of its oldest call that
// has not returned, or the time since anything happened.
func (h *history) idle() time.Duration {
	now := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) == 0 {
		if len(h.events) == 0 {
			return now
		}
		return now - h.events[len(h.events)-1].to
	}
	longest := time.Duration(0)
	for ev := range h.pending {
		longest = max(longest, now-ev.from)
	}
	return longest
}

// hanging lists the calls that have not returned, oldest first.
func (h *history) hanging() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var open []*event
	for ev := range h.pending {
		open = append(open, ev)
	}
	sortEvents(open)
	var lines []string
	for i, ev := range open {
		if i == 8 {
			lines = append(lines, fmt.Sprintf("and %d more", len(open)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s in %s(%s) since %s", ev.who, ev.op, quoteKey(ev.key), seconds(ev.from)))
	}
	return h.brief(strings.Join(lines, "; "))
}

// slowest is the longest that a request took, without the faults that were put in. Calls
// of Acquire wait by design and don't count.
func (h *history) slowest() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.longest
}

// around prints the last events that concern the key, or all keys for the empty
// one.
func (h *history) around(key string) string { return h.until(key, -1) }

// until prints the last events that concern the key and began by the time, and
// those that had not returned by then. A negative time is now.
func (h *history) until(key string, end time.Duration) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	concerns := func(ev *event) bool {
		if end >= 0 && ev.from > end {
			return false
		}
		return key == "" || ev.key == key || ev.key == "" && !strings.HasPrefix(ev.op, "Open")
	}
	var picked []*event
	for _, ev := range h.events {
		if concerns(ev) {
			picked = append(picked, ev)
		}
	}
	left := 0
	if n := max(len(picked)-showEvents, 0); n > 0 {
		for _, ev := range picked[:n] {
			left += ev.count
		}
		picked = picked[n:]
	}
	for ev := range h.pending {
		if concerns(ev) {
			picked = append(picked, ev)
		}
	}
	sortEvents(picked)
	if len(picked) == 0 {
		return "no calls were made"
	}
	var b strings.Builder
	b.WriteString("calls")
	if key != "" {
		fmt.Fprintf(&b, " on %s", quoteKey(key))
	}
	b.WriteString(" (seconds since the case began: called .. returned)")
	if n := left + h.dropped; n > 0 {
		fmt.Fprintf(&b, ", without %d earlier ones", n)
	}
	for _, ev := range picked {
		b.WriteString("\n  " + h.brief(ev.line(key == "")))
	}
	return b.String()
}

// brief leaves out what all keys of the case begin with.
func (h *history) brief(text string) string {
	if h.keys == "" {
		return text
	}
	return strings.ReplaceAll(text, h.keys, ".../")
}

func (ev *event) line(withKey bool) string {
	to := "   ...  "
	if ev.to >= 0 {
		to = fmt.Sprintf("%8.4f", ev.to.Seconds())
	}
	result := ev.result
	if ev.err != nil {
		result = outcome(ev.err)
	}
	s := fmt.Sprintf("%8.4f .. %s  %-10s %s", ev.from.Seconds(), to, ev.who, ev.op)
	if withKey && ev.key != "" {
		s += " " + quoteKey(ev.key)
	}
	switch {
	case ev.to < 0:
		s += ": has not returned"
	case ev.disturbed && ev.count > 1:
		s += fmt.Sprintf(", %d times", ev.count)
	case ev.count > 1:
		s += fmt.Sprintf(": %d refusals; the last: %s", ev.count, result)
	case result != "":
		s += ": " + result
	}
	return s
}

func sortEvents(evs []*event) {
	// Insertion sort: the list is short and nearly sorted.
	for i := 1; i < len(evs); i++ {
		for j := i; j > 0 && evs[j].from < evs[j-1].from; j-- {
			evs[j], evs[j-1] = evs[j-1], evs[j]
		}
	}
}

func quoteKey(key string) string {
	if len(key) > 90 {
		return fmt.Sprintf("%q... (%d bytes)", key[:60], len(key))
	}
	return fmt.Sprintf("%q", key)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.4f s", d.Seconds()) }

// short leaves out the digits of a duration that say nothing.
func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
