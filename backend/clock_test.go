package backend

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSystemClockNeverGoesBack(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			clock := SystemClock()
			last := clock.Now()
			for range 100_000 {
				now := clock.Now()
				if now < last {
					t.Errorf("%d after %d", now, last)
					return
				}
				last = now
			}
		})
	}
	wg.Wait()
	before := SystemClock().Now()
	start := time.Now()
	time.Sleep(20 * time.Millisecond)
	assert.GreaterOrEqual(t, SystemClock().Now().Sub(before), 20*time.Millisecond)
	assert.LessOrEqual(t, SystemClock().Now().Sub(before), time.Since(start)+time.Second)
}
