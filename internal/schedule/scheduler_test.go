package schedule

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/mortiselock/lock/backend"
)

// alarm is an entry that writes down when it was called.
type alarm struct {
	at     int32
	called []backend.Instant
	next   []backend.Instant // further wakes
}

func (a *alarm) Place() *int32 { return &a.at }
func (a *alarm) Due(now backend.Instant) (backend.Instant, func()) {
	a.called = append(a.called, now)
	if len(a.next) == 0 {
		return Never, nil
	}
	next := a.next[0]
	a.next = a.next[1:]
	return next, nil
}

// TestSchedulerCallsEveryEntryInTime sets, moves and removes entries at random and
// requires that each is called at the very instant of virtual time.
func TestSchedulerCallsEveryEntryInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			clock := backend.RuntimeClock()
			s := New(clock)
			start := clock.Now()
			at := func(name string) backend.Instant {
				return start.Add(time.Duration(rapid.IntRange(1, 10000).Draw(t, name)) * time.Millisecond)
			}
			n := rapid.IntRange(1, 60).Draw(t, "entries")
			alarms := make([]*alarm, n)
			want := make([][]backend.Instant, n)
			s.Lock()
			for i := range alarms {
				alarms[i] = &alarm{}
				wake := at("wake")
				s.Set(alarms[i], wake)
				want[i] = []backend.Instant{wake}
				switch rapid.IntRange(0, 3).Draw(t, "then") {
				case 0: // removed
					s.Set(alarms[i], Never)
					want[i] = nil
				case 1: // moved
					wake = at("moved")
					s.Set(alarms[i], wake)
					want[i] = []backend.Instant{wake}
				case 2: // again
					again := wake.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "again")) * time.Millisecond)
					alarms[i].next = []backend.Instant{again}
					want[i] = append(want[i], again)
				}
			}
			s.Unlock()
			time.Sleep(20 * time.Second)
			synctest.Wait()
			s.StopIf(func() bool { return true })
			for i, a := range alarms {
				if len(a.called) != len(want[i]) {
					t.Fatalf("entry %d was called at %v, not at %v", i, a.called, want[i])
				}
				for j := range a.called {
					if a.called[j] != want[i][j] {
						t.Fatalf("entry %d was called at %v, not at %v", i, a.called, want[i])
					}
				}
			}
		})
	})
}
