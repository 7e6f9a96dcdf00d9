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

// variant is a protocol to search.
type variant struct {
	nodes, clients int
	attempts       int  // acquisitions of each client
	noOrder        bool // a node accepts any token, also one that is not larger
	onePhase       bool // a node counts its grants, and the largest count of a majority is the token
	forgets        bool // one node may lose its data, once
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
	proposes              // the token is on the way
	accepter              // accepted
)

// modelClient is an acquisition, and how far it is.
type modelClient struct {
	phase   uint8 // 0 idle, 1 asking for the key, 2 asking for the token, 3 holds
	attempt uint8
	token   uint8
	floor   uint8 // the largest token that was granted to anybody when the attempt began
}

// model is a state of the whole. It is comparable, and a key of a map.
type model struct {
	nodes   [modelNodes]modelNode
	clients [modelClients]modelClient
	given   uint16 // the tokens that were granted, one bit for each
	forgot  bool
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
// the steps to the first violation, if there is one.
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
			next = next.sorted()
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
		if m.nodes[n].owner != 0 {
			s := m
			s.nodes[n].owner = 0
			next(s, func() string { return fmt.Sprintf("the key of client %d expires on a node", m.nodes[n].owner-1) }, "")
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
			if int(m.clients[c].attempt) < v.attempts {
				s := m
				s.clients[c].phase, s.clients[c].floor = 1, m.largest()
				next(s, func() string { return fmt.Sprintf("client %d begins", c) }, "")
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
	granters, accepters, best := 0, 0, uint8(0)
	for n := range v.nodes {
		node := m.nodes[n]
		at := node.asked[c]
		switch at.state {
		case granter:
			granters++
			best = max(best, at.told)
		case accepter:
			accepters++
		case asks:
			if node.owner != 0 {
				continue
			}
			s := m
			s.nodes[n].owner = id
			if v.onePhase {
				s.nodes[n].accepted++
			}
			if s.nodes[n].asked[c].state = granter; me.phase == 2 {
				s.nodes[n].asked[c].state = proposes // sent behind the request for the key
			} else {
				s.nodes[n].asked[c].told = s.nodes[n].accepted
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
	case me.phase == 1 && granters >= quorum:
		s := m
		s.clients[c].phase, s.clients[c].token = 2, best+1
		for n := range v.nodes {
			at := &s.nodes[n].asked[c]
			if at.state == granter {
				at.state = proposes
			}
			at.told = 0
		}
		next(s, func() string { return fmt.Sprintf("client %d proposes token %d", c, best+1) }, "")
	case me.phase == 2 && accepters >= quorum:
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
	s.clients[c].phase, s.clients[c].token = 3, token
	s.forget(c)
	s.given |= 1 << token
	next(s, func() string { return fmt.Sprintf("client %d holds the key with token %d", c, token) }, wrong)
}

// end is the end of an acquisition: of a hold, or without one.
func (m *model) end(c int) {
	m.clients[c] = modelClient{attempt: m.clients[c].attempt + 1}
	m.forget(c)
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
		"one acquisition of each of three":                    {variant: variant{nodes: 3, clients: 3, attempts: 1}, long: true},
		"three acquisitions of each of two":                   {variant: variant{nodes: 3, clients: 2, attempts: 3}, long: true},
		"without the test that a token is larger":             {variant: variant{nodes: 3, clients: 2, attempts: 2, noOrder: true}, violated: true},
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
