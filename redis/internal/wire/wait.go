package wire

import (
	"sync"
	"time"
)

// closePatience is how long closing waits for goroutines whose requests get no answer.
const closePatience = 500 * time.Millisecond

// WaitBriefly waits for goroutines that were told to end, as far as they can.
func WaitBriefly(running *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		running.Wait()
	}()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
	}
}
