package redislock

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

func (c *modelClient) number() uint64 {
	return uint64(c.phase)<<32 | uint64(c.attempt)<<24 | uint64(c.token)<<16 | uint64(c.guess)<<8 | uint64(c.floor)
}

// sorted writes the state with its nodes in order.
func (m model) sorted() model {
	n := &m.nodes
	for _, p := range [][2]int{{0, 1}, {1, 2}, {0, 1}} {
		if n[p[1]].number() < n[p[0]].number() {
			n[p[0]], n[p[1]] = n[p[1]], n[p[0]]
		}
	}
	return m
}

func (n *modelNode) number() uint64 {
	x := uint64(n.owner)<<8 | uint64(n.accepted)
	for _, a := range n.asked {
		x = x<<16 | uint64(a.state)<<8 | uint64(a.told)
	}
	return x
}

// largest is the largest token that was granted.
func (m *model) largest() uint8 { return uint8(max(bits.Len16(m.given)-1, 0)) }

// search visits every state that can be reached. It returns how many there are, and
// the steps to the first violation, if there is one. In them the clients may have changed
// their numbers on the way.
func (v variant) search() (states int, violation []string) {
	type origin struct {
		from int32
		step string
	}
	start := model{}
	seen := map[model]int32{start: 0}
	queue := []model{start}
	came := []origin{{from: -1}}
	for at := 0; at < len(queue); at++ {
		v.steps(queue[at], func(next model, step func() string, wrong string) {
			if violation != nil {
				return
			}
			if wrong != "" {
				violation = []string{step() + ": " + wrong}
				for i := int32(at); i > 0; i = came[i].from {
					violation = append([]string{came[i].step}, violation...)
				}
				return
			}
			next = v.reduced(next)
			if _, known := seen[next]; !known {
				seen[next] = int32(len(queue))
				queue = append(queue, next)
				came = append(came, origin{int32(at), step()})
			}
		})
		if violation != nil {
			break
		}
	}
	return len(queue), violation
}

// steps calls next with every state that one step leads to.
func (v variant) steps(m model, next func(model, func() string, string)) {
	quorum := v.nodes/2 + 1
	for n := range v.nodes {
		for token := uint8(1); int(token) <= v.proposals; token++ {
			if token > m.nodes[n].accepted {
				s := m
				s.nodes[n].accepted = token
				next(s, func() string { return fmt.Sprintf("a late request has token %d accepted by a node", token) }, "")
			}
		}
		if v.forgets && !m.forgot {
			s := m
			s.nodes[n].owner, s.nodes[n].accepted, s.forgot = 0, 0, true
			next(s, func() string { return "a node loses its data" }, "")
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
				next(s, func() string { return fmt.Sprintf("client %d begins, and proposes token %d", c, guess) }, "")
			}
		case 1, 2:
			v.act(m, c, id, quorum, next)
		case 3:
			s := m
			s.end(c)
			next(s, func() string { return fmt.Sprintf("client %d is released", c) }, "")
		}
	}
}

// act is what can happen to an acquisition that is under way.
func (v variant) act(m model, c int, id uint8, quorum int, next func(model, func() string, string)) {
	me := m.clients[c]
	granters, eagers, accepters, best := 0, 0, 0, uint8(0)
	for n := range v.nodes {
		node := m.nodes[n]
		at := node.asked[c]
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
			next(s, func() string { return fmt.Sprintf("client %d gets the key of a node", c) }, "")
		case proposes:
			if node.owner != id || !v.noOrder && me.token <= node.accepted {
				continue
			}
			s := m
			s.nodes[n].accepted = me.token
			s.nodes[n].asked[c].state = accepter
			next(s, func() string { return fmt.Sprintf("client %d has token %d accepted by a node", c, me.token) }, "")
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
		next(s, func() string { return fmt.Sprintf("client %d proposes token %d", c, best+1) }, "")
	case me.phase == 2 && accepters+eagers >= quorum:
		v.hold(m, c, me.token, next)
	}
	// It gives up, whatever the reason. Its releases are the keys' expiries.
	s := m
	s.end(c)
	next(s, func() string { return fmt.Sprintf("client %d gives up", c) }, "")
}

// hold grants the key to the client.
func (v variant) hold(m model, c int, token uint8, next func(model, func() string, string)) {
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
	next(s, func() string { return fmt.Sprintf("client %d holds the key with token %d", c, token) }, wrong)
}

// end is the end of an acquisition: of a hold, or without one.
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
func (m *model) forget(c int) {
	for n := range m.nodes {
		m.nodes[n].asked[c] = struct{ state, told uint8 }{}
	}
}

func TestRedlockTokensModel(t *testing.T) {
	t.Parallel()
	long := os.Getenv("LOCK_TEST_LONG") != ""
	for name, c := range map[string]struct {
		variant
		violated, long bool
	}{
		"the protocol":                                        {variant: variant{nodes: 3, clients: 2, attempts: 2}},
		"one acquisition of each of three":                    {variant: variant{nodes: 3, clients: 3, attempts: 1}},
		"three acquisitions of each of two":                   {variant: variant{nodes: 3, clients: 2, attempts: 3}, long: true},
		"without the test that a token is larger":             {variant: variant{nodes: 3, clients: 2, attempts: 2, noOrder: true}, violated: true},
		"a token proposed with the request for the key":       {variant: variant{nodes: 3, clients: 2, attempts: 2, once: true, proposals: 2}},
		"one of three tokens proposed with the request":       {variant: variant{nodes: 3, clients: 2, attempts: 2, once: true, proposals: 3}, long: true},
		"two acquisitions of each of two with a proposal":     {variant: variant{nodes: 3, clients: 2, attempts: 2, proposals: 2}},
		"proposed, without the test that it is larger":        {variant: variant{nodes: 3, clients: 2, attempts: 2, proposals: 2, noOrder: true}, violated: true},
		"acceptances of two tokens counted together":          {variant: variant{nodes: 3, clients: 2, attempts: 2, proposals: 2, adds: true}, violated: true},
		"one phase: the largest count of a majority":          {variant: variant{nodes: 3, clients: 2, attempts: 2, onePhase: true}, violated: true},
		"a node that loses its data, which is assumed not to": {variant: variant{nodes: 3, clients: 2, attempts: 2, forgets: true}, violated: true},
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
