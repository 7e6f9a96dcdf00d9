// Package redlock keeps locks on a majority of independent Redis servers, by the
// algorithm of the Redis page on distributed locks ("Redlock") and with fencing tokens.
// It registers the URL scheme redlock. For one server see the package redislock in the
// folder above.
//
//	import _ "github.com/mortiselock/lock/redis/redlock"
//
//	locker, err := lock.Open(ctx, "redlock://cache1,cache2,cache3", nil)
//
// # What is stored
//
// On each node a key has a record, whose expiry the node enforces, and for longer the
// token that the node accepted last. The node itself has a mark:
//
//	redlock:k:KEY   R1|id|attempt|since|details
//	redlock:t:KEY   token|id
//	redlock:node    N1|run id|since|restart delay
//
// The id is that of the acquisition, and attempt tells its requests apart. The details
// are the public part of the holder as JSON. The mark says which run of the server this
// is, since when its data is complete, and the longest restart delay of a Locker. The name
// of the record is also the channel on which the end of a hold is told.
//
// # What is promised
//
// The lock excludes until the holder's deadline as long as a majority of the nodes keeps
// the record. [lock.Client.Guarantees] lists every assumption.
package redlock
