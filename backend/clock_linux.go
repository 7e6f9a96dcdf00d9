package backend

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2): like CLOCK_MONOTONIC, and
// it also counts the time for which the system was suspended.
const clockBoottime = 7

var bootTime = newBootClock(func() time.Duration { return time.Since(base) }, boottime)

func suspendAware() Instant { return bootTime.now() }

func boottime() (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	// A sandbox may forbid the call; the monotonic reading then decides alone.
	return time.Duration(ts.Nano()), errno == 0
}

// bootClock makes a clock that counts suspend from a monotonic clock, which does
// not and is cheap to read, and one that does and costs a system call, which a lock
// would pay several times per acquisition. The dear one is read once in every
// bootEvery of the cheap one.
//
// A look that begins bootEvery after the monotonic clock went on has seen a suspend.
// The kernel starts that clock before it has the devices resumed and processes
// thawed, so that there is hardly a look before; and a process that looked at the
// clock just before the suspend acts on what it saw no earlier.
type bootClock struct {
	mono func() time.Duration
	boot func() (time.Duration, bool)

	works bool          // boot may be read
	start time.Duration // of boot, when mono was zero
	read  atomic.Int64  // before boot was read last, by mono
	slept atomic.Int64  // for how long the system was suspended
}

// bootEvery is short beside the time that a look at the clock can be out of date for
// other reasons: a goroutine may stand still for longer between a look and its use.
const bootEvery = 100 * time.Microsecond

// leastSleep tells a suspend from the time that passes between the readings of two
// clocks. Without a suspend now is what mono says.
const leastSleep = time.Millisecond

func newBootClock(mono func() time.Duration, boot func() (time.Duration, bool)) *bootClock {
	c := &bootClock{mono: mono, boot: boot}
	for i := range 5 { // the best of them: the process may stand still between two readings
		at, ok := boot()
		if start := at - mono(); i == 0 || start > c.start {
			c.start = start
		}
		c.works = ok
	}
	return c
}

func (c *bootClock) now() Instant {
	mono := c.mono()
	if !c.works || mono-time.Duration(c.read.Load()) < bootEvery {
		return Instant(mono) + Instant(c.slept.Load())
	}
	before := mono
	boot, ok := c.boot()
	mono = c.mono()
	if ok {
		// The later of two looks at mono makes this the least that can be true, so that
		// the largest that was seen is true too, and now never goes back. The earlier one
		// is how old this is, if the process was suspended between the readings.
		slept := int64(boot - c.start - mono)
		for old := c.slept.Load(); slept-old >= int64(leastSleep) && !c.slept.CompareAndSwap(old, slept); old = c.slept.Load() {
		}
	}
	c.read.Store(int64(before)) // after slept: whoever sees this sees that
	return Instant(mono) + Instant(c.slept.Load())
}
