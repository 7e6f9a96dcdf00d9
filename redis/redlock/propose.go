package redlock

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/mortiselock/lock/backend"
)

// A token can be proposed with the request for the key, before a node has said which it
// would accept: an acquisition is then one round trip. A node accepts it by the same
// rule as in a round of its own, and not unless it is ahead of the node's clock. So
// what is proposed is the nodes' clock, as their last answers tell it, and a little more.

const (
	// ahead is how far ahead of the nodes' clock a token is, for requests that are on
	// the way for longer than the last one.
	ahead = 5 * time.Millisecond
	// maxApart is how far apart the clocks of nodes may be that are to accept the same
	// token. The script accepts no token that is 50 ms ahead of its clock.
	maxApart = 40 * time.Millisecond
)

// nodeClock is what is known of a node's clock.
type nodeClock struct {
	offset atomic.Int64 // from ours, in microseconds; too large by the way of a request. 0: unknown
}

// learn takes in the clock of a node that answered a request, and when it was sent.
func (c *nodeClock) learn(us int64, sent backend.Instant) {
	c.offset.Store(us - micros(sent))
}

func micros(i backend.Instant) int64 { return int64(i) / int64(time.Microsecond) }

// proposal is the token to propose, or 0 when the clocks of a majority are not known,
// or are too far apart.
func (b *majority) proposal(now backend.Instant) int64 {
	var offsets [maxNodes]int64
	known := offsets[:0]
	for _, n := range b.nodes {
		if o := n.clocked.offset.Load(); o != 0 {
			known = append(known, o)
		}
	}
	slices.Sort(known)
	for i := len(known) - 1; i >= b.quorum-1; i-- {
		if known[i]-known[i-b.quorum+1] > maxApart.Microseconds() {
			continue // the largest one is ahead of most
		}
		token := known[i] + micros(now) + ahead.Microseconds()
		for {
			// What an earlier request was told may be less than what a later one was. The
			// last proposal counts unless it was a mistake.
			last := b.proposed.Load()
			next := token
			if last >= token && last < token+maxApart.Microseconds() {
				next = last + 1
			}
			if b.proposed.CompareAndSwap(last, next) {
				return next
			}
		}
	}
	return 0
}

// offer is what a node that granted the key said of tokens.
type offer struct {
	accepted bool  // the one that was proposed
	least    int64 // that it would accept
	kept     int64 // the one that it accepted for the acquisition before
}

func (c *call) offer(proposed int64) offer {
	switch v := c.value.(type) {
	case int64:
		return offer{accepted: true, least: proposed + 1}
	case string:
		kept, _ := strconv.ParseInt(v, 10, 64)
		return offer{kept: kept, least: kept + 1}
	case []any:
		least, _ := v[0].(int64)
		return offer{least: least}
	}
	return offer{}
}

// tokens are what the nodes that granted the key say together: whether a majority of
// all nodes has accepted the one that was proposed; and otherwise which to ask for, one
// after the other. An acquisition that asks again, and may have been granted a token
// before, keeps it, unless the nodes know better: the tokens that were accepted for it
// come first, the smallest at the head, since a later question that reached a few nodes
// only has left a larger one there.
func (r *round) tokens(proposed int64) (agreed bool, next []int64) {
	var fresh int64
	accepted := 0
	for i, v := range r.tally.votes[:r.tally.nodes] {
		if v != yes {
			continue
		}
		g := r.calls[i].offer(proposed)
		if g.accepted {
			accepted++
		}
		if g.kept > 0 {
			next = append(next, g.kept)
		}
		fresh = max(fresh, g.least)
	}
	slices.Sort(next)
	return accepted >= r.tally.quorum, append(slices.Compact(next), fresh)
}
