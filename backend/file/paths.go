package filelock

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"path/filepath"
)

// shards is the number of guards and of token counters. Keys that share a shard
// wait for each other for the length of one operation, never for the length of a
// hold. Guards and counters are never removed, and their number does not grow
// with the number of keys.
const shards = 256

// The directories inside the lock directory.
const (
	guardDir = "guards" // guards/ab: empty, locked for the length of one operation
	tokenDir = "tokens" // tokens/ab: the last token of the shard
	holdDir  = "holds"  // holds/ab/<hash of the key>.json: the record, while there are holds
	tempDir  = "tmp"    // tmp/ab: what is about to be renamed to a record

	waitersFile = "waiters" // empty: who watches a key has a byte of it locked
)

var subDirs = []string{guardDir, tokenDir, holdDir, tempDir}

// place is where a key lives.
type place struct {
	key   string
	shard byte
	guard string
	token string
	temp  string
	dir   string // of the record
	name  string // of the record in dir

	waiter int64 // the byte of the file of waiters
}

// record is the path of the state file.
func (p place) record() string { return filepath.Join(p.dir, p.name) }

// placeOf names files by the SHA-256 of the key, so that every byte of the key
// counts whatever the file system thinks of case, length or slashes. The record
// holds the key itself, which is compared.
func (b *files) placeOf(key string) place {
	sum := sha256.Sum256([]byte(key))
	name := hex.EncodeToString(sum[:])
	shard := name[:2]
	return place{
		key:   key,
		shard: sum[0],
		guard: filepath.Join(b.dir, guardDir, shard),
		token: filepath.Join(b.dir, tokenDir, shard),
		temp:  filepath.Join(b.dir, tempDir, shard),
		dir:   filepath.Join(b.dir, holdDir, shard),
		name:  name + ".json",

		waiter: int64(binary.BigEndian.Uint64(sum[:]) >> 2),
	}
}
