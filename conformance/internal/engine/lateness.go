package engine

import (
	"fmt"
	"sync"
	"time"
)

// Prompt is how long a thing may take that needs a round trip or two. It does not grow
// with the TTL of repeats.
func (e *Env) Prompt() time.Duration {
	return 250*time.Millisecond + e.Settings.TTL/10 + 3*e.pace.of(0.5)
}

// Lateness collects by how much the same thing came late, several times. The machine
// may delay any of them and a late lock delays all, so that the least one counts,
// against a bound that would be too narrow for each, and without the time for which this
// process stood still. It counts unless requests take half of
// that as a rule, and enough for what is too much; or where there were few, unless one took a
// sixth of it.
type Lateness struct {
	By    HoldUp // allRequests, if it is not said
	mu    sync.Mutex
	n     int
	least time.Duration
}

// many are enough to know what is usual.
const many = 8

// Add takes note of one delay, which ends now.
func (l *Lateness) Add(e *Env, d time.Duration) {
	if d > 0 {
		d -= e.stalls.during(d)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; l.n == 1 || d < l.least {
		l.least = d
	}
}

// Hopeless reports that more of the same would change nothing.
func (l *Lateness) Hopeless(most time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n >= many && l.least > most
}

// Late is the excuse of what took so long, and was to take no longer than most: what held
// it up must be a good part of what is too much.
func (e *Env) Late(took, most time.Duration, by HoldUp) Excuse {
	return Excuse{max(min(most, e.Prompt())/2, (took-most)/3), by}
}

// LateWake is Late for one who was woken by so many requests, one after the other, of which
// each may be held up.
func (e *Env) LateWake(took, most time.Duration, requests int) Excuse {
	return Excuse{max(min(most, e.Prompt()), took-most) / time.Duration(requests), AnyRequest}
}

// Judge reports a lock that was later than most each time.
func (l *Lateness) Judge(e *Env, key string, most time.Duration, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n > 0 && l.least > most {
		by := l.By
		if by == allRequests && l.n < many {
			by = AnyRequest
		}
		late := e.Late(l.least, most, by)
		if l.n < many { // a few may all have had bad luck, several times over
			late.From = max(min(most, e.Prompt())/6, (l.least-most)/3)
		}
		if e.heldUp(by) < late.From {
			late = Excuse{} // what is slow from now on has delayed none of them
		}
		e.Fail(late, key, "%s %s late or more, all the %d times; expected at most %s, once at least", fmt.Sprintf(format, args...), Short(l.least), l.n, Short(most))
	}
}
