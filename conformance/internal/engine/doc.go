// Package engine runs the rules of the suite: it opens clients whose calls are recorded,
// disturbs their requests, kills and stops processes, and judges what was seen.
//
// A rule gets an [Env]. From it come clients ([Env.Locker], [Env.Backend], [Env.Faulty]
// with faults between the lock package and a backend, and [Env.Behind] with a network of its
// own, which also a finished Locker has), keys and owners, and the words for what is wrong.
// [Env.Failf] is for what is wrong at any speed, [Env.Unexpected] for an error. [Env.Latef] is
// for what came too late or ended too early, by a part of a TTL, and [Env.Overduef] for what
// had not happened when the rule stopped waiting. A slow machine excuses those two.
// How long the calls of a client with faults took excuses nothing. [AcrossProcesses] gives a
// rule processes, and [AtFaultSites] runs it for each place where faults can be put.
//
// Package rules has the rules, and what they share: leases of each kind (kinds.go), the ways in
// which they come about (ways.go), kinds of errors (errors.go). Package conformance has what users
// call. Engine imports neither.
package engine
