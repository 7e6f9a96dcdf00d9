package conformance

import (
	"fmt"
	"sync"
	"time"
)

// prompt is how long a thing may take that needs a round trip or two. It does not grow
// with the TTL of repeats.
func (e *env) prompt() time.Duration { return 250*time.Millisecond + e.settings.ttl/10 }

// lateness collects by how much the same thing came late, several times. The machine
// may delay any of them and a late lock delays all, so that the least one counts,
// against a bound that would be too narrow for each. It counts unless requests take half of
// that as a rule, and enough for what is too much; or where there were few, unless one did.
type lateness struct {
	by    holdUp // allRequests, if it is not said
	mu    sync.Mutex
	n     int
	least time.Duration
}

// many are enough to know what is usual.
const many = 8

func (l *lateness) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n++; l.n == 1 || d < l.least {
		l.least = d
	}
}

// hopeless reports that more of the same would change nothing.
func (l *lateness) hopeless(most time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n >= many && l.least > most
}

// judge reports a lock that was later than most each time.
func (l *lateness) judge(e *env, key string, most time.Duration, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n > 0 && l.least > most {
		by := l.by
		if by == allRequests && l.n < many {
			by = anyRequest
		}
		late := excuse{max(most/2, (l.least-most)/3), by}
		if e.heldUp(by) < late.from {
			late = excuse{} // what is slow from now on has delayed none of them
		}
		e.fail(late, key, "%s %s late or more, all the %d times; expected at most %s, once at least", fmt.Sprintf(format, args...), short(l.least), l.n, short(most))
	}
}
