package redlock

import (
	"fmt"
	"math/bits"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The token protocol as a model, searched completely: every state that the clients
// and nodes can reach, breadth first, in whatever order messages arrive. A key may
// expire on any node at any moment, so that no clock is trusted. What must hold:
// whoever asks for the key after a token was granted gets a larger one, and no token
// is granted twice.
//
// Any message may be lost or late, without a step for it:
//   - a request that is lost, or that a node refuses, changes nothing there: it may as
//     well never arrive;
//   - a request for the key whose reply is lost may as well arrive when it no longer
//     matters to the client, which is in the second phase by then or has given up;
//   - a client that does not hear that its token was accepted can do no more than one
//     that hears and gives up;
//   - the keys of a client that has given up, which keep others out until they expire,
//     may as well expire at once: to others they look like requests that are lost.
//
// A request for the key that proposes a token may have it accepted by a node when its
// client has given up: any node may do so at any moment.

// variant is a protocol to search.
type variant struct {
	nodes, clients int
	attempts       int  // acquisitions of each client
	once           bool // all but the first client have one
	noOrder        bool // a node accepts any token, also one that is not larger
	onePhase       bool // a node counts its grants, and the largest count of a majority is the token
	forgets        bool // one node may lose its data, once
	clocks         bool // such a node stays away until its clock has passed every token that there was
	proposals      int  // the largest token that may be proposed with the request for the key; 0: none is
	adds           bool // who had one token accepted counts for another one
}

const (
	modelNodes   = 3
	modelClients = 3
)

// modelNode is what a node remembers, and what is between it and each client. Which
// node is which does not matter, so that a state is written with its nodes in order.
type modelNode struct {
	owner    uint8 // the acquisition that has the key; 0: nobody
	accepted uint8 // the largest token
	away     bool  // it takes no part
	asked    [modelClients]struct{ state, told uint8 }
}

// The state of one client's request to one node.
const (
	asks     uint8 = iota // the request for the key is on the way
	granter               // granted
	eager                 // granted, and the token that was proposed with the request accepted
	proposes              // the token is on the way
	accepter              // accepted
	hopeless              // the token is on the way, and can't be accepted any more
)

// modelClient is an acquisition, and how far it is.
type modelClient struct {
	phase   uint8 // 0 idle, 1 asking for the key, 2 asking for the token, 3 holds
	attempt uint8
	token   uint8 // that it asks for, or has
	guess   uint8 // the token that it proposed with the request for the key
	floor   uint8 // the largest token that was granted to anybody when the attempt began
}

// model is a state of the whole. It is comparable, and a key of a map.
type model struct {
	nodes   [modelNodes]modelNode
	clients [modelClients]modelClient
	given   uint16 // the tokens that were granted, one bit for each
	forgot  bool
}

// reduced leaves out of the state what nothing that can happen depends on, so that states
// which differ in nothing else are searched once.
//
//go:norace
func (v variant) reduced(m model) model {
	seen := m.largest() // by all who ask
	for c := range v.clients {
		me := &m.clients[c]
		waits, best := false, uint8(0)
		for n := range v.nodes {
			node := &m.nodes[n]
			at := &node.asked[c]
			// A key that was lost is not had again, and what a node has accepted only grows.
			if at.state == proposes && (node.owner != uint8(c)+1 || !v.noOrder && !v.forgets && me.token <= node.accepted) {
				at.state = hopeless
			}
			waits = waits || at.state == asks
			if at.state == granter {
				best = max(best, at.told)
			}
			if node.owner == uint8(c)+1 && at.state != granter && at.state != eager && at.state != proposes {
				node.owner = 0 // nobody will look whether the key is still there
			}
		}
		for n := range v.nodes {
			if at := &m.nodes[n].asked[c]; at.state == granter {
				at.told = best // only the largest matters
			}
		}
		if me.phase == 2 && !waits {
			me.guess = 0
		}
		if me.phase == 1 || me.phase == 2 {
			seen = min(seen, me.floor)
		}
	}
	// A token that is not larger than a floor is wrong for that.
	m.given = m.given&^(1<<(seen+1)-1) | 1<<m.largest()
	m = m.sorted()
	if v.clients == 2 && !v.once {
		if other := m.exchanged().sorted(); other.before(&m) {
			m = other // which client is which does not matter
		}
	}
	return m
}

// exchanged is the state with the first two clients in each other's place.
//
//go:norace
func (m model) exchanged() model {
	m.clients[0], m.clients[1] = m.clients[1], m.clients[0]
	for n := range m.nodes {
		node := &m.nodes[n]
		node.asked[0], node.asked[1] = node.asked[1], node.asked[0]
		if node.owner == 1 || node.owner == 2 {
			node.owner = 3 - node.owner
		}
	}
	return m
}

// before is an order of states, no matter which.
//
//go:norace
func (m *model) before(o *model) bool {
	for c := range m.clients {
		if a, b := m.clients[c].number(), o.clients[c].number(); a != b {
			return a < b
		}
	}
	for n := range m.nodes {
		if a, b := m.nodes[n].number(), o.nodes[n].number(); a != b {
			return a < b
		}
	}
	return false
}

//go:norace
func (c *modelClient) number() uint64 {
	return uint64(c.phase)<<32 | uint64(c.attempt)<<24 | uint64(c.token)<<16 | uint64(c.guess)<<8 | uint64(c.floor)
}

// sorted writes the state with its nodes in order.
//
//go:norace
func (m model) sorted() model {
	n := &m.nodes
	for _, p := range [][2]int{{0, 1}, {1, 2}, {0, 1}} {
		if n[p[1]].number() < n[p[0]].number() {
			n[p[0]], n[p[1]] = n[p[1]], n[p[0]]
		}
	}
	return m
}

//go:norace
func (n *modelNode) number() uint64 {
	x := uint64(n.owner)<<8 | uint64(n.accepted)
	if n.away {
		x |= 1 << 12
	}
	for _, a := range n.asked {
		x = x<<16 | uint64(a.state)<<8 | uint64(a.told)
	}
	return x
}

// largestKnown is the largest token that a node has accepted, or that is asked for.
//
//go:norace
func (m *model) largestKnown() uint8 {
	most := m.largest()
	for c := range m.clients {
		most = max(most, m.clients[c].token, m.clients[c].guess)
	}
	for n := range m.nodes {
		most = max(most, m.nodes[n].accepted)
	}
	return most
}

// largest is the largest token that was granted.
//
//go:norace
func (m *model) largest() uint8 { return uint8(max(bits.Len16(m.given)-1, 0)) }

// step leads from one state to another.
type step struct {
	text    string
	numbers [2]int // in the text
	wrong   string // what may not happen in it
}

func (s step) String() string {
	var numbers []any
	for _, n := range s.numbers[:strings.Count(s.text, "%d")] {
		numbers = append(numbers, n)
	}
	return fmt.Sprintf(s.text, numbers...)
}

// states are those that were reached, in the order in which they were found. In a map or
// one slice the race detector would look at all of them again as it grows.
type states struct {
	number int
	chunks [][]model
	slots  []int32 // by the hash of a state: its number plus one
}

const chunk = 1 << 14

//go:norace
func (s *states) at(i int) *model { return &s.chunks[i/chunk][i%chunk] }

// add adds a state, unless it is there.
//
//go:norace
func (s *states) add(m model) bool {
	if 2*s.number >= len(s.slots) {
		s.slots = make([]int32, max(chunk, 4*len(s.slots)))
		for i := range s.number {
			s.slots[s.slot(s.at(i))] = int32(i) + 1
		}
	}
	slot := s.slot(&m)
	if s.slots[slot] != 0 {
		return false
	}
	if s.number == chunk*len(s.chunks) {
		s.chunks = append(s.chunks, make([]model, chunk))
	}
	*s.at(s.number) = m
	s.number++
	s.slots[slot] = int32(s.number)
	return true
}

// slot is where the state is, or belongs.
//
//go:norace
func (s *states) slot(m *model) int {
	h := uint64(m.given)
	if m.forgot {
		h |= 1 << 16
	}
	const odd = 0x9e3779b97f4a7c15
	for n := range m.nodes {
		h = (h ^ m.nodes[n].number()) * odd
		h ^= h >> 32
	}
	for c := range m.clients {
		h = (h ^ m.clients[c].number()) * odd
		h ^= h >> 32
	}
	for at := int(h % uint64(len(s.slots))); ; at = (at + 1) % len(s.slots) {
		if i := int(s.slots[at]); i == 0 || *s.at(i - 1) == *m {
			return at
		}
	}
}

// search visits every state that can be reached. It returns how many there are, and
// the steps to the first violation, if there is one. In them the clients may have changed
// their numbers on the way.
//
//go:norace
func (v variant) search() (number int, violation []string) {
	var found states
	found.add(model{})
	from := []int32{-1} // the number of the state before
	for at := 0; at < found.number && violation == nil; at++ {
		v.steps(*found.at(at), func(next model, s step) {
			switch {
			case violation != nil:
			case s.wrong != "":
				violation = append(v.path(&found, from, at), s.String()+": "+s.wrong)
			case found.add(v.reduced(next)):
				from = append(from, int32(at))
			}
		})
	}
	return found.number, violation
}

// path is the steps to a state. They are looked for again, since few are ever read.
func (v variant) path(found *states, from []int32, to int) (path []string) {
	for ; to > 0; to = int(from[to]) {
		var last step
		v.steps(*found.at(int(from[to])), func(next model, s step) {
			if v.reduced(next) == *found.at(to) {
				last = s
			}
		})
		path = append([]string{last.String()}, path...)
	}
	return path
}

// steps calls next with every state that one step leads to.
//
//go:norace
func (v variant) steps(m model, next func(model, step)) {
	quorum := v.nodes/2 + 1
	for n := range v.nodes {
		for token := uint8(1); int(token) <= v.proposals; token++ {
			if token > m.nodes[n].accepted && !m.nodes[n].away {
				s := m
				s.nodes[n].accepted = token
				next(s, step{text: "a late request has token %d accepted by a node", numbers: [2]int{int(token)}})
			}
		}
		if v.forgets && !m.forgot {
			s := m
			s.nodes[n].owner, s.nodes[n].accepted, s.forgot = 0, 0, true
			if v.clocks {
				// What its clock is when it is back is more than any token until now.
				s.nodes[n].accepted, s.nodes[n].away = m.largestKnown(), true
			}
			next(s, step{text: "a node loses its data"})
		}
		if m.nodes[n].away {
			s := m
			s.nodes[n].away = false
			next(s, step{text: "the node that lost its data takes part again"})
		}
	}
	for c := range v.clients {
		id := uint8(c) + 1
		switch m.clients[c].phase {
		case 0:
			attempts := v.attempts
			if c > 0 && v.once {
				attempts = 1
			}
			for guess := 0; guess <= v.proposals && int(m.clients[c].attempt) < attempts; guess++ {
				s := m
				s.clients[c].phase, s.clients[c].guess, s.clients[c].floor = 1, uint8(guess), m.largest()
				next(s, step{text: "client %d begins, and proposes token %d", numbers: [2]int{c, guess}})
			}
		case 1, 2:
			v.act(m, c, id, quorum, next)
		case 3:
			s := m
			s.end(c)
			next(s, step{text: "client %d is released", numbers: [2]int{c}})
		}
	}
}

// act is what can happen to an acquisition that is under way.
//
//go:norace
func (v variant) act(m model, c int, id uint8, quorum int, next func(model, step)) {
	me := m.clients[c]
	granters, eagers, accepters, best := 0, 0, 0, uint8(0)
	for n := range v.nodes {
		node := m.nodes[n]
		at := node.asked[c]
		if node.away && (at.state == asks || at.state == proposes) {
			continue
		}
		switch at.state {
		case granter:
			granters++
			best = max(best, at.told)
		case eager:
			granters++
			eagers++
			best = max(best, me.guess)
		case accepter:
			accepters++
		case asks:
			s := m
			s.nodes[n].owner = id // whoever had it: that key has expired
			if v.onePhase {
				s.nodes[n].accepted++
			}
			takes := me.guess > node.accepted || me.guess > 0 && v.noOrder
			if takes {
				s.nodes[n].accepted = me.guess
			}
			switch {
			case me.phase == 2:
				s.nodes[n].asked[c].state = proposes // sent behind the request for the key
			case takes:
				s.nodes[n].asked[c].state = eager
			default:
				s.nodes[n].asked[c].state, s.nodes[n].asked[c].told = granter, s.nodes[n].accepted
			}
			next(s, step{text: "client %d gets the key of a node", numbers: [2]int{c}})
		case proposes:
			if node.owner != id || !v.noOrder && me.token <= node.accepted {
				continue
			}
			s := m
			s.nodes[n].accepted = me.token
			s.nodes[n].asked[c].state = accepter
			next(s, step{text: "client %d has token %d accepted by a node", numbers: [2]int{c, int(me.token)}})
		}
	}
	switch {
	case me.phase == 1 && granters >= quorum && v.onePhase:
		v.hold(m, c, best, next)
	case me.phase == 1 && eagers >= quorum:
		v.hold(m, c, me.guess, next)
	case me.phase == 1 && granters >= quorum:
		s := m
		s.clients[c].phase, s.clients[c].token = 2, best+1
		for n := range v.nodes {
			at := &s.nodes[n].asked[c]
			if at.state == granter || at.state == eager && !v.adds {
				at.state = proposes
			}
			at.told = 0
		}
		next(s, step{text: "client %d proposes token %d", numbers: [2]int{c, int(best) + 1}})
	case me.phase == 2 && accepters+eagers >= quorum:
		v.hold(m, c, me.token, next)
	}
	// It gives up, whatever the reason. Its releases are the keys' expiries.
	s := m
	s.end(c)
	next(s, step{text: "client %d gives up", numbers: [2]int{c}})
}

// hold grants the key to the client.
//
//go:norace
func (v variant) hold(m model, c int, token uint8, next func(model, step)) {
	wrong := ""
	if floor := m.clients[c].floor; token <= floor {
		wrong = fmt.Sprintf("token %d was granted before it asked", floor)
	}
	if m.given&(1<<token) != 0 {
		wrong = "the token was granted before"
	}
	s := m
	s.forget(c)
	s.clients[c] = modelClient{phase: 3, attempt: m.clients[c].attempt}
	s.given |= 1 << token
	next(s, step{text: "client %d holds the key with token %d", numbers: [2]int{c, int(token)}, wrong: wrong})
}

// end is the end of an acquisition: of a hold, or without one.
//
//go:norace
func (m *model) end(c int) {
	m.forget(c)
	m.clients[c] = modelClient{attempt: m.clients[c].attempt + 1}
	for n := range m.nodes {
		if m.nodes[n].owner == uint8(c)+1 {
			m.nodes[n].owner = 0
		}
	}
}

// forget drops what is under way between the client and the nodes.
//
//go:norace
func (m *model) forget(c int) {
	for n := range m.nodes {
		m.nodes[n].asked[c] = struct{ state, told uint8 }{}
	}
}

func TestTokensModel(t *testing.T) {
	t.Parallel()
	long := os.Getenv("LOCK_TEST_LONG") != ""
	for name, c := range map[string]struct {
		variant
		violated, long bool
	}{
		"the protocol":                                       {variant: variant{nodes: 3, clients: 2, attempts: 2}},
		"one acquisition of each of three":                   {variant: variant{nodes: 3, clients: 3, attempts: 1}},
		"three acquisitions of each of two":                  {variant: variant{nodes: 3, clients: 2, attempts: 3}, long: true},
		"without the test that a token is larger":            {variant: variant{nodes: 3, clients: 2, attempts: 2, noOrder: true}, violated: true},
		"a token proposed with the request for the key":      {variant: variant{nodes: 3, clients: 2, attempts: 2, once: true, proposals: 2}},
		"one of three tokens proposed with the request":      {variant: variant{nodes: 3, clients: 2, attempts: 2, once: true, proposals: 3}, long: true},
		"two acquisitions of each of two with a proposal":    {variant: variant{nodes: 3, clients: 2, attempts: 2, proposals: 2}},
		"proposed, without the test that it is larger":       {variant: variant{nodes: 3, clients: 2, attempts: 2, proposals: 2, noOrder: true}, violated: true},
		"acceptances of two tokens counted together":         {variant: variant{nodes: 3, clients: 2, attempts: 2, proposals: 2, adds: true}, violated: true},
		"one phase: the largest count of a majority":         {variant: variant{nodes: 3, clients: 2, attempts: 2, onePhase: true}, violated: true},
		"a node that loses its data, whatever the clocks do": {variant: variant{nodes: 3, clients: 2, attempts: 2, forgets: true}, violated: true},
		"the same, and its clock is not behind those before": {variant: variant{nodes: 3, clients: 2, attempts: 2, once: true, forgets: true, clocks: true}},
		"the same, with two acquisitions of each of two":     {variant: variant{nodes: 3, clients: 2, attempts: 2, forgets: true, clocks: true}, long: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.long && !long {
				t.Skip("takes long: set LOCK_TEST_LONG")
			}
			start := time.Now()
			states, violation := c.search()
			t.Logf("%d states in %s", states, time.Since(start).Round(time.Millisecond))
			if !c.violated {
				require.Empty(t, violation, "\n%s", strings.Join(violation, "\n"))
				return
			}
			require.NotEmpty(t, violation, "the search does not see that this is wrong")
			t.Logf("violated:\n%s", strings.Join(violation, "\n"))
		})
	}
}
