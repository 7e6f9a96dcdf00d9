package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// What is left to itself may begin something while somebody waits for the end of all.
func TestTasksBeginWhileOneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a tasks
		a.wait(time.Hour)
		begun := time.Now()
		for range 3 {
			go a.Go(func() { time.Sleep(time.Second) })
		}
		a.Go(func() { time.Sleep(time.Second) })
		a.wait(time.Hour)
		assert.Equal(t, time.Second, time.Since(begun))

		a.Go(func() { time.Sleep(2 * time.Hour) })
		a.wait(time.Hour)
		assert.Equal(t, time.Hour+time.Second, time.Since(begun), "what hangs is waited for no longer than the limit")
		a.wait(2 * time.Hour)
		assert.Equal(t, 2*time.Hour+time.Second, time.Since(begun))
	})
}
