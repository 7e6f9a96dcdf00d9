package filelock

// bootClock is the clock that all processes of the machine agree on. Readings are
// comparable between processes that see the same id, and only between those.
type bootClock struct {
	// id names the run of the machine's kernel. A record with another id is from
	// before a reboot, and all its holds have ended.
	id string
	// now is nanoseconds since the boot, suspend included. It cannot fail once
	// openBootClock has succeeded.
	now func() int64
}
