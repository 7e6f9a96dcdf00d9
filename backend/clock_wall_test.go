package backend

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWallClockThatIsSetBackLengthensNothing(t *testing.T) {
	var w wallLeaps
	var mono, wall time.Duration
	pass := func(m, w time.Duration) { mono, wall = mono+m, wall+w }
	now := func() Instant { return w.now(func() (time.Duration, time.Duration) { return mono, wall }) }
	assert.Zero(t, now())
	pass(time.Second, time.Second)
	assert.EqualValues(t, time.Second, now())
	pass(time.Second, time.Second+time.Hour) // set forward, or suspended
	set := now()
	assert.EqualValues(t, 2*time.Second+time.Hour, set)
	pass(time.Second, time.Second-time.Hour) // set right
	assert.Equal(t, time.Second, now().Sub(set), "a clock that goes back keeps leases alive")
	pass(time.Second, time.Second+time.Minute) // suspended
	assert.Equal(t, 2*time.Second+time.Minute, now().Sub(set))
	before := now()
	for range 1000 { // a wall clock with a coarse grain
		pass(time.Millisecond, 16*time.Millisecond)
		now()
		pass(15*time.Millisecond, 0)
		now()
	}
	assert.Equal(t, 16*time.Second, now().Sub(before))
}

func TestInstantsDoNotOverflow(t *testing.T) {
	const last, first = Instant(1<<63 - 1), Instant(-1 << 63)
	assert.Equal(t, last, Instant(1).Add(1<<63-1))
	assert.Equal(t, first, Instant(-1).Add(-1<<63))
	assert.Equal(t, Instant(3), Instant(5).Add(-2))
	assert.EqualValues(t, 1<<63-1, last.Sub(-1))
	assert.EqualValues(t, -1<<63, first.Sub(1))
	assert.EqualValues(t, -2, Instant(3).Sub(5))
}
