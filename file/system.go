package filelock

// bootClock is the clock that all processes of the machine agree on. Readings are
// comparable between processes on one run of the machine's kernel, and only
// between those.
type bootClock struct {
	run runID
	// now is nanoseconds since the boot, suspend included. It cannot fail once
	// openBootClock has succeeded.
	now func() int64
}

// runID names a run of the machine's kernel, in up to two ways. A process may be
// unable to see one of them.
type runID struct {
	// Boot is the boot id of the system.
	Boot string `json:"boot,omitempty"`
	// Kernel is drawn by the kernel when it starts, where no container can put
	// another in its place.
	Kernel string `json:"kernel,omitempty"`
}

// is reports whether both may be the same run. A record of another run is from before
// a reboot, and all its holds have ended. Two that have no name in common can't be told
// apart, and the record is respected until it runs out.
func (r runID) is(other runID) bool {
	switch {
	case r.Boot != "" && other.Boot != "":
		return r.Boot == other.Boot
	case r.Kernel != "" && other.Kernel != "":
		return r.Kernel == other.Kernel
	}
	return true
}
