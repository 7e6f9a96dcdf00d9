package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
)

// CallLog keeps the calls of one case: who called what, when, and what came
// back, on one monotonic clock.
type CallLog struct {
	Base time.Time
	keys string // begins every key of the case; it is left out where it would be repeated

	mu        sync.Mutex
	entries   []*Entry          // the last maxEntries, in the order of their ends
	last      map[string]*Entry // the last of each key
	pending   map[*Entry]struct{}
	unheard   map[asker]time.Duration // when a client last lost the answer to a request for a key
	dropped   int
	moved     time.Duration // when a call returned last
	done      time.Duration // the same, without refusals
	turn      time.Duration // when a wait was served last
	longest   time.Duration // that a request took, without the faults that were put in
	waited    time.Duration // that an undisturbed call took that had no answer
	unrenewed time.Duration // that a renewal took that failed, without the faults that were put in
	pace      *pace         // nil: nobody wants to know
	used      *usedKeys     // nil: nobody wants to know
	suspect   func()        // is told of a request without an answer; nil: nobody wants to know
}

const (
	maxEntries  = 3000
	showEntries = 20
)

// Entry is one call, a note between calls, or several refusals in a row.
type Entry struct {
	who, op, key string
	From, to     time.Duration
	result       string
	err          error // or what came back, where that is not told in result
	refused      bool
	disturbed    bool // a fault that was put in, and no call
	count        int  // of refusals, or of faults
}

// asker is a client that asks for a key.
type asker struct{ who, key string }

func newCallLog(base time.Time) *CallLog {
	return &CallLog{
		Base: base, last: map[string]*Entry{}, pending: map[*Entry]struct{}{}, unheard: map[asker]time.Duration{},
	}
}

// Now is the time since the case began.
func (h *CallLog) Now() time.Duration { return time.Since(h.Base) }

// At is t as time since the case began.
func (h *CallLog) At(t time.Time) time.Duration { return t.Sub(h.Base) }

// Begin records that a call was made.
func (h *CallLog) Begin(who, op, key string) *Entry {
	ev := &Entry{who: who, op: op, key: key, From: h.Now(), to: -1}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[ev] = struct{}{}
	return ev
}

// End records that the call returned.
func (h *CallLog) End(ev *Entry, result string) { h.finish(ev, result, nil) }

// ended records that a call for a key returned with an error. Most of them are never
// shown, so that none is made a text of before.
func (h *CallLog) ended(ev *Entry, err error) { h.finish(ev, Outcome(nil), err) }

func (h *CallLog) finish(ev *Entry, result string, err error) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	ev.to, ev.result, ev.err, ev.refused = now, result, err, errors.Is(err, lock.ErrHeld)
	h.returned(ev)
	h.add(ev)
}

// returned takes note of the end of a call. The mutex is held.
func (h *CallLog) returned(ev *Entry) {
	delete(h.pending, ev)
	h.moved = max(h.moved, ev.to)
	if !ev.refused {
		h.done = max(h.done, ev.to)
	}
	if ev.op == "Acquire" && ev.err == nil {
		h.turn = max(h.turn, ev.to)
	}
}

func (h *CallLog) tookOrFailed(ev *Entry, err error) {
	if err == nil {
		h.took(ev)
	} else {
		h.failed(ev, err)
	}
}

// neverAnswered is the longest that a call took which had no answer, though nothing
// disturbed it: of those that were, what is beneath the fault counts.
func (h *CallLog) neverAnswered() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waited
}

// failed looks whether a call that nothing disturbed failed for want of an answer.
func (h *CallLog) failed(ev *Entry, err error) {
	if noAnswer(err) {
		h.unanswered(ev.to - ev.From)
	}
}

func (h *CallLog) unanswered(d time.Duration) {
	h.mu.Lock()
	h.waited = max(h.waited, d)
	h.mu.Unlock()
	if h.suspect != nil {
		h.suspect()
	}
}

// took tells how long a request took, which nothing disturbed and which was answered
// well. Refusals are left out: a lock may wait before it refuses, and be wrong in it.
func (h *CallLog) took(ev *Entry) {
	switch ev.op {
	case "TryAcquire", "Try", "Renew", "Release":
		h.served(ev.to - ev.From)
	}
}

// answered is took for what a Locker asked beneath the faults that are put in: what it
// does by itself, such as its renewals, is seen nowhere else.
func (h *CallLog) answered(op faultlock.Op, _ string, d time.Duration, err error) {
	switch op {
	case faultlock.OpTry, faultlock.OpRenew, faultlock.OpRelease:
		switch {
		case err == nil:
			h.served(d)
		case op == faultlock.OpRenew && !errors.Is(err, lock.ErrNotHeld):
			h.mu.Lock()
			h.unrenewed = max(h.unrenewed, d)
			h.mu.Unlock()
		case op != faultlock.OpRenew && noAnswer(err):
			h.unanswered(d)
		}
	}
}

// renewalFailed is the longest that a renewal took which was not answered well.
func (h *CallLog) renewalFailed() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unrenewed
}

// overtaken tells how long a refusal took that was followed by a grant.
func (h *CallLog) overtaken(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.longest = max(h.longest, d)
}

func (h *CallLog) served(d time.Duration) {
	h.mu.Lock()
	h.longest = max(h.longest, d)
	h.mu.Unlock()
	if h.pace != nil {
		h.pace.add(d)
	}
}

// Note records something that is not a call.
func (h *CallLog) Note(who, key, text string) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(&Entry{who: who, op: text, key: key, From: now, to: now})
}

// faultWords say what the names of faults mean.
var faultWords = strings.NewReplacer(
	"fail before", "refused, and not sent", "fail after", "applied, and the answer lost", "drop", "lost on its way",
	"delay before", "sent late", "delay after", "applied, and answered late", "duplicate", "sent twice",
	"apply late", "answered with an error, and sent late", "hang before", "hanging, and not sent", "hang after", "applied, and hanging",
)

// disturb records that a request met a fault.
func (h *CallLog) disturb(who, key string, op faultlock.Op, fault string) {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if fault == faultlock.FailAfter().String() {
		switch op {
		case faultlock.OpTry, faultlock.OpEnqueue, faultlock.OpWait, faultlock.OpHandOver:
			h.unheard[asker{who, key}] = now
		}
	}
	ev := &Entry{who: "network", op: fmt.Sprintf("the %s of %s: %s", op, who, faultWords.Replace(fault)), key: key, From: now, to: now, disturbed: true}
	if last := h.last[key]; last != nil && last.disturbed && last.op == ev.op {
		last.to = now
		last.count++
		return
	}
	h.add(ev)
}

// lostAnswer reports whether the client has lost the answer to a request for the key
// since then: it may have been granted without anybody knowing.
func (h *CallLog) lostAnswer(who, key string, since time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, lost := h.unheard[asker{who, key}]
	return lost && at >= since
}

// quiet is for how long no call has returned, and for how long nothing but refusals.
func (h *CallLog) quiet() (any, refusals time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.Now()
	return now - h.moved, now - h.done
}

// Patient takes note that a case waits on purpose, so that it is not given up as stuck.
func (h *CallLog) Patient() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved = h.Now()
	h.done = h.moved
}

func (h *CallLog) add(ev *Entry) {
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
	if len(h.entries) >= maxEntries {
		n := maxEntries / 2
		for _, old := range h.entries[:n] {
			h.dropped += old.count
			if h.last[old.key] == old {
				delete(h.last, old.key)
			}
		}
		h.entries = append(h.entries[:0], h.entries[n:]...)
	}
	h.entries = append(h.entries, ev)
	h.last[ev.key] = ev
}

// idle is for how long the case has made no progress: the age of its oldest call that
// has not returned, or the time since anything happened.
func (h *CallLog) idle() time.Duration {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) == 0 {
		if len(h.entries) == 0 {
			return now
		}
		return now - h.entries[len(h.entries)-1].to
	}
	longest := time.Duration(0)
	for ev := range h.pending {
		longest = max(longest, now-ev.From)
	}
	return longest
}

// takesTurns reports that nothing but waits is under way for longer than that, and that the
// last of them which was served is no longer ago.
func (h *CallLog) takesTurns(longest time.Duration) bool {
	now := h.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for ev := range h.pending {
		if ev.op != "Acquire" && now-ev.From > longest {
			return false
		}
	}
	return h.turn > 0 && now-h.turn <= longest
}

// hanging lists the calls that have not returned, oldest first.
func (h *CallLog) hanging() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var open []*Entry
	for ev := range h.pending {
		open = append(open, ev)
	}
	sortEntries(open)
	var lines []string
	for i, ev := range open {
		if i == 8 {
			lines = append(lines, fmt.Sprintf("and %d more", len(open)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s in %s(%s) since %s", ev.who, ev.op, QuoteKey(ev.key), Seconds(ev.From)))
	}
	return h.brief(strings.Join(lines, "; "))
}

// slowest is the longest that a request took, without the faults that were put in. Calls
// of Acquire wait by design and don't count.
func (h *CallLog) slowest() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.longest
}

// around prints the last entries that concern the key, or all keys for the empty
// one.
func (h *CallLog) around(key string) string { return h.until(key, -1) }

// until prints the last entries that concern the key and began by the time, and
// those that had not returned by then. A negative time is now.
func (h *CallLog) until(key string, end time.Duration) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	concerns := func(ev *Entry) bool {
		if end >= 0 && ev.From > end {
			return false
		}
		return key == "" || ev.key == key || ev.key == "" && !strings.HasPrefix(ev.op, "Open")
	}
	var picked []*Entry
	for _, ev := range h.entries {
		if concerns(ev) {
			picked = append(picked, ev)
		}
	}
	left := 0
	if n := max(len(picked)-showEntries, 0); n > 0 {
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
	sortEntries(picked)
	if len(picked) == 0 {
		return "no calls were made"
	}
	var b strings.Builder
	b.WriteString("calls")
	if key != "" {
		fmt.Fprintf(&b, " on %s", QuoteKey(key))
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
func (h *CallLog) brief(text string) string {
	if h.keys == "" {
		return text
	}
	return strings.ReplaceAll(text, h.keys, ".../")
}

func (ev *Entry) line(withKey bool) string {
	to := "   ...  "
	if ev.to >= 0 {
		to = fmt.Sprintf("%8.4f", ev.to.Seconds())
	}
	result := ev.result
	if ev.err != nil {
		result = Outcome(ev.err)
	}
	s := fmt.Sprintf("%8.4f .. %s  %-10s %s", ev.From.Seconds(), to, ev.who, ev.op)
	if withKey && ev.key != "" {
		s += " " + QuoteKey(ev.key)
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

func sortEntries(evs []*Entry) {
	// Insertion sort: the list is short and nearly sorted.
	for i := 1; i < len(evs); i++ {
		for j := i; j > 0 && evs[j].From < evs[j-1].From; j-- {
			evs[j], evs[j-1] = evs[j-1], evs[j]
		}
	}
}

// QuoteKey is the key as the evidence shows it.
func QuoteKey(key string) string {
	if len(key) > 90 {
		return fmt.Sprintf("%q... (%d bytes)", key[:60], len(key))
	}
	return fmt.Sprintf("%q", key)
}

// Seconds is a time since the case began as the evidence shows it.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.4f s", d.Seconds()) }

// Short leaves out the digits of a duration that say nothing.
func Short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
