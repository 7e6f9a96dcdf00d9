package etcdlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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

// slots gives the acquisitions of one client their names below the directories of
// the locks:
//
//	CLIENT-ERA-SLOT
//
// A server walks over every name that a range ever had since the last compaction,
// so that names are used again: a lock that one client takes over and over has one.
// A name belongs to one acquisition at a time, and an acquisition that ends while a
// request about its key has no answer ends the era, since the request could meet the
// next user of the name. The backend's mutex guards the slots.
type slots struct {
	client string
	era    int
	used   map[string][]bool // whether slot number i of this era is in use, by the key of the lock
}

// slot is a name in use.
type slot struct {
	name string // the etcd key
	key  string
	era  int
	n    int
}

func newSlots() slots {
	return slots{client: fmt.Sprintf("%016x", rand.Uint64()), used: map[string][]bool{}}
}

func (s *slots) take(n names) slot {
	used := s.used[n.key]
	i := slices.Index(used, false)
	if i < 0 {
		i = len(used)
		used = append(used, false)
		s.used[n.key] = used
	}
	used[i] = true
	name := n.dir + s.client + "-" + strconv.Itoa(s.era) + "-" + strconv.Itoa(i)
	return slot{name: name, key: n.key, era: s.era, n: i}
}

// free gives the name back. doubtful: a request about it may still be on its way.
func (s *slots) free(x slot, doubtful bool) {
	switch {
	case x.era != s.era:
		return
	case doubtful:
		s.era++
		s.used = map[string][]bool{}
		return
	}
	used := s.used[x.key]
	used[x.n] = false
	if !slices.Contains(used, true) {
		delete(s.used, x.key)
	}
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
	element, slot, ok := strings.Cut(rest, "/")
	if !ok || strings.Contains(slot, "/") {
		return "", false
	}
	key := unescaper.Replace(element)
	return key, escape(key) == element && backend.ValidateKey(key) == nil
}
