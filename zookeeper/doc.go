// Package zklock keeps locks in Apache ZooKeeper, on
// github.com/go-zookeeper/zk. Importing it registers the URL scheme zk.
//
// A key is a container node, and whoever wants it puts a sequential ephemeral node
// below. The first in the order of creation holds the key, the second watches the first,
// and each other the last but one before it, which gives it time to look again. That is the
// lock recipe of the ZooKeeper documentation, with the repairs that practice has shown to
// be needed. The recipe is our own, on the raw
// connection; the Lock of the client library has no context and leaves nodes behind.
//
// A session keeps its ephemeral nodes alive, and all holds of a Locker share one.
// The TTL of a Locker is therefore the timeout that its session was granted, fixed
// when the Locker is opened. The session's events come too late to tell of a loss:
// a follower that has lost its leader answers pings and reads as if nothing had
// happened while the leader ends the session. So a hold counts only on writes that
// a quorum confirmed, and is given up two thirds of the TTL after the last one was
// sent.
package zklock
