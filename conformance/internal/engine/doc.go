// Package engine runs the rules of the suite: it opens clients whose calls are recorded,
// disturbs their requests, kills and stops processes, and judges what was seen.
//
// A rule gets an [Env]. From it come clients ([Env.Locker], [Env.Backend], and
// [Env.Faulty] with faults in between), keys and owners, and the words for what is wrong:
// [Env.Failf] for what is wrong at any speed, [Env.Latef] and [Env.Overduef] for what may
// be the fault of a slow machine, [Env.Unexpected] for an error. [AcrossProcesses] gives a
// rule processes, and [AtFaultSites] runs it for each place where faults can be put.
//
// Package rules has the rules, and package conformance what users call. Engine imports
// neither.
package engine
