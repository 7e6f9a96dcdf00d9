package backend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBootClock(t *testing.T) {
	var mono, slept time.Duration
	looks, allowed := 0, true
	c := newBootClock(func() time.Duration { return mono },
		func() (time.Duration, bool) { looks++; return time.Hour + mono + slept, allowed })
	assert.EqualValues(t, 0, c.now())
	mono += time.Second
	assert.EqualValues(t, time.Second, c.now())

	looks = 0
	for range 10 {
		mono += bootEvery / 20
		c.now()
	}
	assert.Zero(t, looks, "a system call for each look")

	slept += time.Minute
	mono += bootEvery
	before := time.Second + bootEvery/2
	assert.Equal(t, time.Minute+bootEvery, c.now().Sub(Instant(before)), "a suspend was not seen")

	slept += time.Minute
	allowed = false
	mono += time.Second
	assert.EqualValues(t, before+bootEvery+time.Minute+time.Second, c.now(), "what a forbidden call left was used")
}

// A goroutine may stand still between the two clocks that it reads.
func TestBootClockIsNeverAhead(t *testing.T) {
	var mono, slept time.Duration
	pauses := []time.Duration{0, time.Minute} // before each reading; this is while the clock is made
	pause := func() {
		if len(pauses) > 0 {
			mono, pauses = mono+pauses[0], pauses[1:]
		}
	}
	c := newBootClock(func() time.Duration { pause(); return mono },
		func() (time.Duration, bool) { pause(); return mono + slept, true })
	last := c.now()
	for i := range 1000 {
		pauses = []time.Duration{0, time.Duration(i%2) * time.Millisecond, time.Duration(i%3) * time.Millisecond}
		mono += time.Millisecond
		if i%100 == 0 {
			slept += time.Second
		}
		now := c.now()
		assert.GreaterOrEqual(t, now, last, "went back")
		assert.LessOrEqual(t, now, Instant(mono+slept), "is ahead")
		last = now
	}
	c.now()
	assert.Equal(t, Instant(mono+slept), c.now())
}

// A system is suspended while a process is between the reading of the one clock and
// that of the other. What it has read is old then.
func TestBootClockThatWasReadBeforeASuspend(t *testing.T) {
	var mono, slept time.Duration
	suspend := false
	c := newBootClock(func() time.Duration { return mono }, func() (time.Duration, bool) {
		at := mono + slept
		if suspend {
			slept, mono, suspend = slept+time.Hour, mono+500*time.Millisecond, false
		}
		return at, true
	})
	mono = time.Second
	suspend = true
	c.now()
	assert.Equal(t, Instant(mono+slept), c.now(), "the first look that began after it")
}

func TestSystemClockCountsSuspend(t *testing.T) {
	_, ok := boottime()
	assert.True(t, ok, "CLOCK_BOOTTIME can't be read")
	assert.LessOrEqual(t, bootEvery, 100*time.Microsecond)
	before := bootTime
	defer func() { bootTime = before }()
	var slept time.Duration
	bootTime = newBootClock(before.mono, func() (time.Duration, bool) { return before.mono() + slept, true })
	start := SystemClock().Now()
	slept = time.Hour
	time.Sleep(100 * time.Microsecond)
	assert.GreaterOrEqual(t, SystemClock().Now().Sub(start), time.Hour)
}
