package etcdlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

// What is kept of the last value is that value, but for the time.
func TestGrantedRecordIsTheEncodedOne(t *testing.T) {
	t.Parallel()
	b := &etcdBackend{}
	now := time.Date(2026, 3, 29, 1, 59, 59, 123456000, time.FixedZone("", 3600))
	for _, h := range []backend.Holder{
		{Host: "db1", PID: 312},
		{Host: "db1", PID: 312, Label: "nightly"},
		{Host: "db1", PID: 312, Label: `"since":"1970-01-01T00:00:00Z"`},
		{Label: "1970-01-01T00:00:00Z"},
		{},
		{Host: "db1", PID: 312},
	} {
		for _, at := range []time.Time{now, now.Add(time.Second), now.Truncate(time.Second)} {
			for _, ttl := range []time.Duration{15 * time.Second, time.Minute} {
				for _, how := range []string{"anew", "from what is kept"} {
					granted, waiting := b.texts(h, ttl, 7, at)
					assert.Equal(t, encodeRecord(h, ttl, 7, at), granted, how)
					assert.Equal(t, encodeRecord(h, ttl, 7, time.Time{}), waiting, how)
				}
			}
		}
	}
}

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
