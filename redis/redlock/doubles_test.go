package redlock

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// flaky is a node that can be disturbed. It sits where the queue of a node ends, so
// that everything above it is real, and so are the scripts below it.
type flaky struct {
	server
	mu   sync.Mutex
	mode func(do func())
	fail error       // given instead of the answers, or nil
	sent map[any]int // requests, by the hash of their script
}

// set makes the next batches go through mode, and gives fail instead of their
// answers if it is not nil.
func (f *flaky) set(fail error, mode func(do func())) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.mode = fail, mode
}

func (f *flaky) do(ctx context.Context, calls []*call) {
	f.mu.Lock()
	mode, fail := f.mode, f.fail
	if f.sent == nil {
		f.sent = map[any]int{}
	}
	for _, c := range calls {
		f.sent[c.script.Hash]++
	}
	f.mu.Unlock()
	if mode == nil {
		mode = func(do func()) { do() }
	}
	mode(func() { f.server.do(ctx, calls) })
	if fail != nil {
		for _, c := range calls {
			c.value, c.err = nil, fail
		}
	}
}

var errRefusedConnection = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func (f *flaky) up()         { f.set(nil, nil) }
func (f *flaky) down()       { f.set(errRefusedConnection, func(func()) {}) }
func (f *flaky) losesReply() { f.set(io.EOF, nil) }

// stall holds every batch back until the function that it returns is called.
func (f *flaky) stall() (goOn func()) {
	gate := make(chan struct{})
	f.set(nil, func(do func()) { <-gate; do() })
	return sync.OnceFunc(func() { close(gate) })
}

// double is a Redlock whose nodes are databases of one server.
type double struct {
	*majority
	nodes   []*flaky
	clients []*goredis.Client
}

func doubleClients(t testing.TB, n int) []*goredis.Client {
	t.Helper()
	s := servertest.SharedRedis(t)
	clients := make([]*goredis.Client, n)
	for i := range clients {
		clients[i] = goredis.NewClient(&goredis.Options{Addr: s.Addr(), Password: s.Password(), DB: i})
		t.Cleanup(func() { _ = clients[i].Close() })
	}
	return clients
}

func doubleOn(t testing.TB, clients []*goredis.Client, opts Options) *double {
	t.Helper()
	if opts.Prefix == "" {
		opts.Prefix = "double:" + backend.NewID().Hex()[:8] + ":"
	}
	if opts.NodeTimeout == 0 {
		opts.NodeTimeout = 3 * time.Second // those who count votes don't mind how long they take
	}
	b, err := newMajority(clients, false, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	d := &double{majority: b, clients: clients}
	for i, n := range b.nodes {
		f := &flaky{server: n.server}
		n.server = f
		d.nodes = append(d.nodes, f)
		answer, err := clients[i].Eval(t.Context(), markScript.Text, []string{b.mark}, 0).Slice()
		require.NoError(t, err)
		// As after the first opening of a set that was said to be new.
		require.NoError(t, clients[i].Set(t.Context(), b.mark, "N1|"+wire.List(answer).String(0)+"|0|0", 0).Err())
	}
	return d
}

// records are the records of the key, one for each node.
func (d *double) records(t testing.TB, key string) []string {
	t.Helper()
	out := make([]string, len(d.clients))
	for i, c := range d.clients {
		text, err := c.Get(t.Context(), d.record(key)).Result()
		if !errors.Is(err, goredis.Nil) {
			require.NoError(t, err)
		}
		out[i] = text
	}
	return out
}

// sent is how often the nodes were sent the script.
func (d *double) sent(s wire.Script) int {
	n := 0
	for _, f := range d.nodes {
		f.mu.Lock()
		n += f.sent[s.Hash]
		f.mu.Unlock()
	}
	return n
}

// count is how many nodes have a record of the key.
func (d *double) count(t testing.TB, key string) int {
	n := 0
	for _, text := range d.records(t, key) {
		if text != "" {
			n++
		}
	}
	return n
}

// rival puts the record of another client on a node.
func (d *double) rival(t testing.TB, key string, nodes ...int) {
	t.Helper()
	record := recordHead + backend.NewID().Hex() + `|1|1760000000000|{"label":"rival"}`
	for _, i := range nodes {
		require.NoError(t, d.clients[i].Set(t.Context(), d.record(key), record, time.Minute).Err())
	}
}

func (d *double) forget(t testing.TB, key string, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		require.NoError(t, d.clients[i].Del(t.Context(), d.record(key)).Err())
	}
}

// answered waits until no node has a request that it has not answered.
func (d *double) answered(t *testing.T) {
	t.Helper()
	backendtest.Eventually(t, "every node has answered", func() bool {
		return !slices.ContainsFunc(d.majority.nodes, func(n *node) bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.busy || len(n.queue) > 0
		})
	})
}
