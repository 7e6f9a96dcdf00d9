// Package etcdlock keeps locks in an etcd cluster. It registers the URL schemes
// etcd and etcds, and takes a client of go.etcd.io/etcd/client/v3.
//
//	import _ "github.com/mortiselock/lock/etcd"
//
//	locker, err := lock.Open(ctx, "etcd://h1:2379,h2:2379,h3:2379/myapp", nil)
//
// # What is stored
//
// Each acquisition has an etcd key of its own, on an etcd lease:
//
//	lock/keys/KEY/CLIENT-ERA-SLOT   {"holder":{...},"ttl_ms":15000}
//
// A slash in KEY is written %2F. CLIENT is a random number of the Locker, and ERA and
// SLOT tell its acquisitions apart. The
// acquisition with the smallest create revision holds the lock, the others wait in
// the order of theirs (the recipe of etcd's own concurrency package). A try creates
// its key in a transaction that requires that no acquisition has one, so that it
// leaves nothing behind when it is refused. Keys without a lease are not ours: they
// are left alone and don't count.
//
// # Leases
//
// Holds that are renewed automatically share one etcd lease per Locker and TTL;
// releasing one deletes its key. A hold without renewal has an etcd lease of its own,
// which ends by itself. A shared lease that nobody uses ends with its TTL.
//
// A request that creates a key can arrive late, after its caller has given up and
// the key was deleted in vain; on a shared lease such a key would stay for ever.
// So requests on a shared lease compare the revision of a fence,
//
//	lock/sessions/LEASE
//
// and deleting the key of an acquisition that has an unanswered request moves the
// fence in the same transaction. What was sent before has no effect from then on.
//
// # Fencing tokens
//
// The token is the create revision of the key, counted on from a floor, which is in
// lock/floor. It grows from grant to grant: when a key is granted, no acquisition of
// the lock has an older key, and every later key gets a larger revision than all
// before it. So the next grant, whether of a key that waits already or of one to
// come, has a larger token. The floor only rises: who comes from another store raises
// it. Each grant depends on it, and who has waited while it was raised is given a
// larger token before the grant.
//
// # What is promised
//
// The cluster decides by consensus, so that the lock excludes until the holder's
// deadline whatever crashes or is partitioned. [lock.Client.Guarantees] lists every
// assumption, among them a release of etcd with correct lease renewal.
package etcdlock
