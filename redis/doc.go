// Package redislock keeps locks in Redis: a single server, one behind Sentinel, or
// a Cluster. It registers the URL schemes redis and rediss. [New] takes any client of
// go-redis v9 except a Ring. A majority of independent servers is the package redlock
// in the folder below, which registers a scheme of its own.
//
//	import _ "github.com/mortiselock/lock/redis"
//
//	locker, err := lock.Open(ctx, "redis://localhost:6379", nil)
//
// # What is stored
//
// A key is one string value with an expiry that Redis enforces. It shares a
// token counter with the other keys of its bucket. There are 256 buckets, chosen
// by a hash of the key, and each lies in one hash slot of a Cluster:
//
//	lock:{m:7f}:k:KEY   M1|id:start+ttl,id:start+ttl|token|since|owner|details
//	lock:{m:7f}:t       the last token of the bucket, without expiry
//
// Each hold has the id of its acquisition, its start and its TTL. Times are
// milliseconds of the server's clock. The owner is "-" or a hash of the explicit
// owner, and the details are the public part as JSON. The record's name is also
// that of the channel on which its release is published. Each operation is one
// script, and a record that is not of this form is never changed.
//
// # Fencing tokens
//
// A token is the larger of the counter plus one and the server's clock in
// microseconds, written in the same script as the grant. Losing the counters
// therefore repeats no token as long as the server's clock is not set back.
// Tokens stay below 2^53.
//
// # What is promised
//
// One Redis server decides. The lock excludes until the holder's deadline as
// long as that server does not lose the record: a restart without data, a
// failover to a replica that had not received it, or eviction are such losses.
// [lock.Client.Guarantees] lists every assumption.
package redislock
