package etcdlock

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSlotsAreUsedAgain(t *testing.T) {
	t.Parallel()
	s := newSlots()
	n, other := namesOf("lock/", "k"), namesOf("lock/", "other")
	one, two, three := s.take(n), s.take(n), s.take(other)
	assert.NotEqual(t, one.name, two.name)
	assert.NotEqual(t, one.name, three.name)
	s.free(one, false)
	again := s.take(n)
	assert.Equal(t, one, again, "every name that a range ever had costs the server a step")
	s.free(two, true)
	fresh := s.take(n)
	assert.NotContains(t, []string{one.name, two.name}, fresh.name, "a request about it may be on its way")
	s.free(again, false)
	s.free(three, false)
	s.free(fresh, false)
	assert.Empty(t, s.used)
}
