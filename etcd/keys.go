package etcdlock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

const (
	defaultPrefix = "lock/"
	maxPrefix     = 128
)

// names are the etcd keys of one lock. Each acquisition has a key of its own in
// the range [dir, end), and the one with the smallest create revision holds.
type names struct {
	key string // the lock's key
	dir string // where the keys of its acquisitions begin, with a slash at the end
	end string // the first etcd key behind them
}

func namesOf(prefix, key string) names {
	dir := prefix + "keys/" + escape(key)
	return names{key: key, dir: dir + "/", end: dir + "0"} // '0' follows '/'
}

// own is the etcd key of an acquisition. Its id is a secret, so that the name has
// a hash of it.
func (n names) own(id backend.ID) string {
	sum := sha256.Sum256(id[:])
	return n.dir + hex.EncodeToString(sum[:16])
}

// fenceName is the etcd key that a session's withdrawn requests are told by.
func fenceName(prefix string, id clientv3.LeaseID) string {
	return fmt.Sprintf("%ssessions/%016x", prefix, uint64(id))
}

var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescaper = strings.NewReplacer("%25", "%", "%2F", "/")
)

// escape makes a key one element of a path, so that no key is a path of another.
// Everything but the slash and the percent sign stays readable.
func escape(key string) string { return escaper.Replace(key) }

// keyOf is the lock's key of an etcd key of an acquisition, and false for others.
func keyOf(prefix, name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, prefix+"keys/")
	if !ok {
		return "", false
	}
	element, hash, ok := strings.Cut(rest, "/")
	if !ok || len(hash) != 32 || strings.Contains(hash, "/") {
		return "", false
	}
	key := unescaper.Replace(element)
	return key, escape(key) == element && backend.ValidateKey(key) == nil
}
