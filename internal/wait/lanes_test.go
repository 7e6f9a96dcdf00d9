package wait

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

// A lane that the last has left is used for the next key, as if it were new.
func TestLaneIsUsedAgain(t *testing.T) {
	ls := lanes{m: map[laneKey]*lane{}}
	first, p := ls.enter(laneKey{"a", "owner"})
	assert.Nil(t, p)
	_, behind := ls.enter(laneKey{"a", "owner"})
	stopped := false
	var at backend.Ticket
	first.held.Store(true)
	first.place.Store(&at)
	first.last, first.granted, first.offer = &Lease{}, true, &offer{}
	first.hints, first.stopWatch = make(chan backend.Hint), func() { stopped = true }
	first.traffic = traffic{watching: true, watchers: 3, yield: 2}
	ls.leave(first, nil)
	<-behind
	assert.False(t, stopped, "somebody is in the lane")
	ls.leave(first, behind)
	assert.True(t, stopped)
	assert.Empty(t, ls.m)

	again, p := ls.enter(laneKey{key: "b"})
	assert.Nil(t, p)
	assert.Same(t, first, again)
	assert.Equal(t, traffic{watchAt: math.MinInt64}, again.traffic)
	assert.Equal(t, laneKey{key: "b"}, again.key)
	assert.False(t, again.isHeld())
	assert.False(t, again.granted)
	assert.Nil(t, again.last)
	assert.Nil(t, again.offer)
	assert.Nil(t, again.hints)
	assert.Nil(t, again.stopWatch)
	assert.Empty(t, again.waiting)

	other, _ := ls.enter(laneKey{key: "c"})
	assert.NotSame(t, again, other)
}
