package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
)

// node is what this side knows of the node of one acquisition. It is recorded before
// the node is created and forgotten when the node is known to be gone, so that no
// node can outlive its record while the session lives.
type node struct {
	s    *session
	id   backend.ID
	key  string
	dir  string // the node of the key
	name string // without the sequence
	ttl  time.Duration

	// The session's mutex guards the rest.
	path    string // once it is known to have been created
	czxid   int64
	floor   floor // that its token is counted on from
	data    int32 // the version of its data, unless it is revoked
	version int32 // of the node of the key, when this one was created; anyVersion if it is not known
	granted bool
	busy    chan struct{}   // closed when no request of the client library can create the node any more; nil when none is under way
	waiting int             // calls of Wait
	expiry  backend.Instant // when the node is removed, unless it is renewed or waited at
	doomed  bool            // it is to be removed, and never granted or renewed again
	revoked bool            // it is never granted or renewed again, and keeps others out until expiry
	leaving int             // calls of remove, which the reaper leaves alone
}

// own is the name of the node. It is called when the path is known.
func (n *node) own() string { return n.path[strings.LastIndexByte(n.path, '/')+1:] }

// record returns the node of the request, and whether it is new.
func (s *session) record(req backend.Request) (n *node, isNew bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended() {
		return nil, false, errGone
	}
	if n := s.places[req.ID]; n != nil {
		return n, false, nil
	}
	n = &node{
		s: s, id: req.ID, key: req.Key, dir: s.cfg.dirOf(req.Key), name: nodeName(req.ID), ttl: req.TTL, version: anyVersion,
		expiry: s.clock.Now().Add(req.TTL),
	}
	s.places[req.ID] = n
	return n, true, nil
}

func (s *session) find(id backend.ID) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places[id]
}

// forget drops a node that is gone, or was never created.
func (n *node) forget() {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if n.s.places[n.id] == n {
		delete(n.s.places, n.id)
	}
	n.doomed = true
}

// doom has the node removed by the reaper, if it still is there.
func (n *node) doom() {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	n.doomed = true
}

// creation is the answer to a request that created a node.
type creation struct {
	path  string
	czxid int64
	alone bool // the node is the only child
	backend.Validity
}

// anyVersion creates the node whatever was created before.
const anyVersion = -1

// token is the fencing token of the node. The mutex of the session is held.
func (n *node) token() uint64 { return uint64(n.floor) + uint64(n.czxid) }

// create creates the node, in one transaction with a write to its parent: that one
// answers with the parent's Stat, which says as of the same transaction how many
// children there are. With a version, nothing is created if there was another
// creation since that version was read, and the error is zk.ErrBadVersion. When the
// outcome stays unknown the node is doomed, and removed in the background.
//
// When the connection was lost before the answer, the node is looked for by its name.
func (n *node) create(ctx context.Context, d details, version int32) (creation, error) {
	for again, moved := 0, 0; ; again++ {
		c, err := n.createOnce(ctx, d, version)
		for ; errors.Is(err, errFloorMoved) && moved < floorPatience; moved++ {
			if d, err = n.s.counted(ctx, n.key, d); err != nil {
				return creation{}, err
			}
			c, err = n.createOnce(ctx, d, version)
		}
		if gaveUp(err) || lostReply(err) && again == 2 {
			n.doom()
		}
		if !lostReply(err) || again == 2 {
			return c, err
		}
		found, ferr := n.adopt(ctx)
		if ferr == nil && found.path != "" {
			return found, nil
		}
		if ferr != nil {
			n.doom()
			return c, fmt.Errorf("%w; and looking for what it may have created: %w", err, failure.Unmarked(ferr))
		}
	}
}

func (n *node) createOnce(ctx context.Context, d details, version int32) (creation, error) {
	s := n.s
	busy := make(chan struct{})
	s.mu.Lock()
	if n.doomed || s.ended() {
		s.mu.Unlock()
		return creation{}, errGone
	}
	n.busy, n.floor = busy, d.Floor
	s.mu.Unlock()
	ops := []any{
		&zk.CheckVersionRequest{Path: s.cfg.floorPath(d.Floor), Version: 0},
		&zk.CreateRequest{Path: n.dir + "/" + n.name, Data: d.encode(), Acl: s.cfg.acl, Flags: zk.FlagEphemeral | zk.FlagSequence},
		&zk.SetDataRequest{Path: n.dir, Data: []byte(n.key), Version: version},
	}
	created := func(a answer[[]zk.MultiResponse]) (creation, error) {
		defer close(busy)
		if len(a.value) > 0 && errors.Is(a.value[0].Error, zk.ErrNoNode) {
			s.cfg.floor.Store(nil)
			return creation{}, errFloorMoved
		}
		if a.err != nil {
			return creation{}, a.err
		}
		if len(a.value) != 3 || a.value[2].Stat == nil {
			return creation{}, errors.New("zklock: the server gave an unexpected answer to a transaction")
		}
		stat := a.value[2].Stat
		c := creation{path: a.value[1].String, czxid: stat.Mzxid, alone: stat.NumChildren == 1}
		s.mu.Lock()
		defer s.mu.Unlock()
		n.path, n.czxid, n.version = c.path, c.czxid, stat.Version
		c.Validity = s.proof.wrote(a.sent)
		return c, nil
	}
	a := ask(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) },
		func(a answer[[]zk.MultiResponse]) {
			n.doom() // the caller was told an error
			_, _ = created(a)
		})
	switch {
	case errors.As(a.err, new(notSent)):
		close(busy)
		return creation{}, a.err
	case gaveUp(a.err):
		return creation{}, a.err // busy is closed when the request has come to an end
	}
	return created(a)
}

// adopt looks for the node after its creation was not confirmed. The path is empty
// when it is not there, and then it will not be: the connection on which it was asked
// for is gone, the session has moved on, and sync has waited for what was under way.
func (n *node) adopt(ctx context.Context) (creation, error) {
	s := n.s
	name, err := s.search(ctx, n.dir, n.name)
	if err != nil || name == "" {
		return creation{}, err
	}
	path := n.dir + "/" + name
	a := ask(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		found, stat, err := c.Exists(path)
		if err == nil && !found {
			err = zk.ErrNoNode
		}
		return stat, err
	}, nil)
	if errors.Is(a.err, zk.ErrNoNode) {
		return creation{}, nil
	}
	if a.err != nil {
		return creation{}, a.err
	}
	if a.value.EphemeralOwner != s.conn.SessionID() {
		return creation{}, fmt.Errorf("%w: the node belongs to another session", backend.ErrUnavailable)
	}
	s.mu.Lock()
	n.path, n.czxid = path, a.value.Czxid
	s.mu.Unlock()
	v, err := n.confirm(ctx)
	return creation{path: path, czxid: a.value.Czxid, Validity: v}, err
}

// search finds a child by its name without the sequence, as of now.
func (s *session) search(ctx context.Context, dir, name string) (string, error) {
	if err := s.sync(ctx, dir); err != nil {
		return "", err
	}
	children, _, err := s.children(ctx, dir)
	if errors.Is(err, zk.ErrNoNode) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	found, _ := named(children, name)
	return found, nil
}

// confirm is the heartbeat: a transaction that changes nothing, and yet a write that
// passes through the quorum. It fails when the node is gone or was revoked.
func (n *node) confirm(ctx context.Context) (backend.Validity, error) {
	v, _, err := n.s.confirm(ctx, n)
	return v, err
}

// confirm is the heartbeat of all the nodes or of none. Where the error is that of one of them
// it returns which, else a negative number.
func (s *session) confirm(ctx context.Context, nodes ...*node) (v backend.Validity, failed int, err error) {
	checks := make([]any, len(nodes))
	for i, n := range nodes {
		checks[i] = n.unrevoked()
	}
	type responses = []zk.MultiResponse
	conclude := func(a answer[responses]) (failed int, err error) {
		failed = slices.IndexFunc(a.value, func(r zk.MultiResponse) bool { return r.Error != nil })
		if failed >= 0 {
			return failed, nodes[failed].conclude(a.err)
		}
		return failed, a.err
	}
	a := ask(ctx, s, func(c *zk.Conn) (responses, error) { return c.Multi(checks...) },
		func(late answer[responses]) { _, _ = conclude(late) })
	if a.err != nil {
		failed, err = conclude(a)
		return backend.Validity{}, failed, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proof.wrote(a.sent), -1, nil
}

// conclude notes what the error of a heartbeat says of the node, and returns what it means.
func (n *node) conclude(err error) error {
	switch {
	case errors.Is(err, zk.ErrNoNode):
		n.forget()
		return fmt.Errorf("zklock: key %q: the node was removed: %w", n.key, backend.ErrTakenOver)
	case errors.Is(err, zk.ErrBadVersion):
		n.s.mu.Lock()
		n.revoked = true
		n.s.mu.Unlock()
		return n.wasRevoked()
	}
	return err
}

// unrevoked is an operation that fails when the node is gone or was revoked.
func (n *node) unrevoked() *zk.CheckVersionRequest {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return &zk.CheckVersionRequest{Path: n.path, Version: n.data}
}

func (n *node) wasRevoked() error {
	return fmt.Errorf("zklock: key %q: the node was revoked: %w", n.key, backend.ErrTakenOver)
}

// remove deletes the node, and returns nil when it is certain that it neither exists
// nor can come into being any more. The first result is true if it was this call that
// deleted it.
//
// The node of a hold that is known to be revoked stays until it expires, and then the
// reaper removes it: who worked under the hold may still be stopping.
func (n *node) remove(ctx context.Context) (bool, error) {
	s := n.s
	s.mu.Lock()
	if n.granted && n.revoked && s.clock.Now() < n.expiry {
		s.mu.Unlock()
		return false, nil
	}
	n.doomed = true
	n.leaving++
	busy := n.busy
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		n.leaving--
		s.mu.Unlock()
	}()
	if busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.gone:
			return false, nil
		}
	}
	s.mu.Lock()
	path := n.path
	s.mu.Unlock()
	if path == "" {
		name, err := s.search(ctx, n.dir, n.name)
		if err != nil {
			return false, err
		}
		if name == "" {
			n.forget()
			return false, nil
		}
		path = n.dir + "/" + name
	}
	err := s.delete(ctx, path)
	switch {
	case err == nil:
		s.leftFree(n)
		n.forget()
		return true, nil
	case errors.Is(err, zk.ErrNoNode):
		n.forget()
		return false, nil
	}
	return false, err
}

func (s *session) delete(ctx context.Context, path string) error {
	a := ask(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, -1) }, nil)
	if a.err == nil {
		s.mu.Lock()
		s.proof.wrote(a.sent)
		s.mu.Unlock()
	}
	return a.err
}

// sync has the server catch up with the leader.
func (s *session) sync(ctx context.Context, path string) error {
	return ask(ctx, s, func(c *zk.Conn) (string, error) { return c.Sync(path) }, nil).err
}

func (s *session) children(ctx context.Context, dir string) ([]string, *zk.Stat, error) {
	type list struct {
		names []string
		stat  *zk.Stat
	}
	a := ask(ctx, s, func(c *zk.Conn) (list, error) {
		names, stat, err := c.Children(dir)
		return list{names, stat}, err
	}, nil)
	return a.value.names, a.value.stat, a.err
}

// makeDir creates the node of the key and what is above it up to the chroot. The node
// of a key is a container, which the server removes when it has been empty for a while.
func (s *session) makeDir(ctx context.Context, dir string) error {
	for tries := 0; ; tries++ {
		a := ask(ctx, s, func(c *zk.Conn) (string, error) { return s.makeContainer(c, dir) }, nil)
		switch {
		case a.err == nil, errors.Is(a.err, zk.ErrNodeExists):
			return nil
		case !errors.Is(a.err, zk.ErrNoNode) || tries == 3:
			return a.err
		}
		if err := s.makeRoot(ctx); err != nil {
			return err
		}
	}
}

// makeRoot creates the nodes of the prefix.
func (s *session) makeRoot(ctx context.Context) error {
	path := s.cfg.chroot
	for _, element := range strings.Split(s.cfg.prefix, "/") {
		path += "/" + element
		a := askAgain(ctx, s, func(c *zk.Conn) (string, error) { return c.Create(path, nil, 0, s.cfg.acl) })
		if a.err != nil && !errors.Is(a.err, zk.ErrNodeExists) {
			return a.err
		}
	}
	return nil
}
