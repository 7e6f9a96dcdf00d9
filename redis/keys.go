package redislock

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/mortiselock/lock/redis/internal/wire"
)

const defaultPrefix = "lock:"

// names are the Redis names that belong to a key. The record's name is also that
// of the channel on which its release is published, except in the fair mode and in a crowd.
type names struct {
	bucket string
	key    string
	count  any // the counter, if it was made an interface before
}

func (n names) record() string  { return n.bucket + "k:" + n.key }
func (n names) queue() string   { return n.bucket + "q:" + n.key }
func (n names) lives() string   { return n.bucket + "l:" + n.key }
func (n names) counter() string { return n.bucket + "t" }

// part is the channel of a part of those who watch the key.
func (n names) part(i int) string { return wire.PartOf(n.bucket, n.key, i) }

// counterArg is the counter as an argument of a command.
func (n names) counterArg() any {
	if n.count != nil {
		return n.count
	}
	return n.counter()
}

// buckets are the names that all keys of a bucket share, written once and not per
// command.
type buckets [256]names

func newBuckets(prefix string) *buckets {
	b := &buckets{}
	for n := range b {
		b[n] = bucketNames(prefix, byte(n))
		b[n].count = b[n].counter()
	}
	return b
}

func (b *buckets) namesOf(key string) names {
	n := b[bucketOf(key)]
	n.key = key
	return n
}

const hexDigits = "0123456789abcdef"

// namesOf spreads the keys over 256 buckets. The braces make a bucket one hash
// slot, as scripts in a Cluster need; every key of a prefix with a tag of its
// own is in the slot of that tag.
func namesOf(prefix, key string) names {
	n := bucketNames(prefix, bucketOf(key))
	n.key = key
	return n
}

func bucketNames(prefix string, n byte) names {
	return names{bucket: prefix + "{m:" + string([]byte{hexDigits[n>>4], hexDigits[n&15]}) + "}:"}
}

// emptyTag reports whether the prefix makes a Cluster hash whole names instead of
// the bucket: what counts is the first brace, unless the next one closes it.
func emptyTag(prefix string) bool {
	_, rest, ok := strings.Cut(prefix, "{")
	return ok && strings.HasPrefix(rest, "}")
}

// bucketOf folds the 32-bit FNV-1a hash of the key.
func bucketOf(key string) byte {
	h := uint32(2166136261)
	for i := 0; i < len(key); i++ {
		h = (h ^ uint32(key[i])) * 16777619
	}
	h ^= h >> 16
	return byte(h ^ h>>8)
}

// noOwner stands for the owner in records that nobody can join.
const noOwner = "-"

// ownerField is what the record says of an explicit owner. Owners are secrets,
// and whoever can read the server's data must not learn them.
func ownerField(owner string) string {
	if owner == "" {
		return noOwner
	}
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:16])
}
