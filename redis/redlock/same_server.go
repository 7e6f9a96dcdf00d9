package redlock

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// errTwice is the failure of a node whose server is that of another node: its votes
// would count twice.
var errTwice = errors.New("is the same server as another node, and is not counted; each node must be a server of its own")

// runs are the runs of the servers that the nodes of a Locker lead to, by which one that
// is given twice is found.
type runs struct {
	nodes []*nodeRun
	mu    sync.Mutex // guards the runs of the nodes
}

// nodeRun is the run of one node's server.
type nodeRun struct {
	all   *runs
	name  string      // of the node
	known atomic.Bool // the server was asked, and is no other node's
	run   string      // "" where it is not known
}

// is notes which run the node leads to, and returns an error if another node leads to
// the same. That one is asked anew too, since it may lead elsewhere by now.
func (n *nodeRun) is(run string) error {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	for _, other := range n.all.nodes {
		if other != n && run != "" && other.run == run {
			n.run = ""
			n.known.Store(false)
			other.known.Store(false)
			return fmt.Errorf("%w (%s)", errTwice, other.name)
		}
	}
	n.run = run
	n.known.Store(true)
	return nil
}

// compareRuns has the servers compared at their first answer that could not be reached
// at the opening, and all after a restart.
func (b *majority) compareRuns(states []nodeState) {
	all := &runs{}
	for i, n := range b.nodes {
		s, ok := n.server.(redisServer)
		if !ok {
			return
		}
		s.run = &nodeRun{all: all, name: n.name, run: states[i].info["run_id"]}
		s.run.known.Store(states[i].err == nil)
		all.nodes = append(all.nodes, s.run)
		n.server = s
	}
}
