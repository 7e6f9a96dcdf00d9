// Package conformance is a test suite for distributed locks. It runs on anything
// that implements lock.Locker, and with further rules on a backend.Backend,
// whoever wrote it:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Config{
//			OpenBackend: func(ctx context.Context) (backend.Backend, error) {
//				return mylock.New(ctx, "localhost:1234")
//			},
//		})
//	}
//
// [Run] makes one subtest of each rule. [Check] runs the same cases without the
// testing package and returns a [Report], for tools. [Rules] lists the rules.
//
// # What a pass means
//
// A failure is a broken rule: the suite compares the order of events, and where
// it must bound a time, it compares with a timer in the same process and repeats
// the case when that timer shows that the machine itself stood still. A pass is
// not a proof. Many rules look for races, and a run can miss one: run the suite
// often, with the race detector, with a larger [Config.Budget] now and then, and
// on the real server rather than on a stand-in. What no test in one process can
// see is not covered: crashes of the server, failover, clock jumps, partitions
// between servers.
//
// # Claims
//
// What a lock promises beyond what each must keep (mutual exclusion, owner-only
// release, expiry, renewal, how waits and leases end) is data: backend.Guarantees. It is held against what
// is seen, both ways. A claim that fails is a failure. What is not claimed is
// tried all the same, where that is cheap and safe, and reported as [NotClaimed]
// or as [Unclaimed] ("works, not claimed"), never as a failure. A rule that lacks
// something to work with, such as a way to remove a record by force, is
// [Skipped] and says what is missing. Where no rule has tried a claim,
// [Report.Verdict] says so: a claim that was not tried is not a pass. What a lock is not
// meant to keep is declared with [Config.Deviations], and reported as [Deviation].
//
// # Finished locks
//
// [Adapter] makes a lock.Locker of a lock that has an interface of its own, in a few
// lines.
//
// # Processes
//
// Some rules kill a client with its whole process, or stop it for longer than its
// lease. They need [Child] at the start of TestMain or main, and [Config.Child];
// without them, on systems without SIGSTOP, and where the lock reaches one process
// only, they are skipped and say so.
//
// # The network
//
// Some rules cut the connections of a Locker, lose its requests and the answers to
// them, and let its network fall silent for shorter and for longer than a lease lasts.
// They need [Config.Proxy]: where the server is, and how a Locker is opened that
// reaches it at another address. Each disturbs clients of its own only, through a
// proxy in this process.
//
// # What a run does to the store
//
// Every case uses fresh keys under [Config.KeyPrefix] and clients of its own,
// which it closes at the end. Cases overlap in time. Cases that play a crashed
// client leave records that expire by themselves within a TTL. Remove hooks are
// called for keys of the suite only.
package conformance
