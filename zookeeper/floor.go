package zklock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

// floor is what the tokens of a key space are counted on from. The transactions of an
// ensemble begin at one, and other stores count from the clock: without it, a program that
// comes to ZooKeeper from another store would see its tokens fall.
//
// It is the name of the only child of one node, which the first client that asks for a
// lock makes. Every creation depends on that name in its own transaction, so a client that
// knows another floor is not granted anything.
type floor uint64

// maxFloor leaves as much room for tokens that count on.
const maxFloor = 1 << 53

// floorDir is no node of a key: the element of none begins like this.
func (c *config) floorDir() string { return c.root() + "/%floor" }

func (c *config) floorPath(f floor) string {
	return c.floorDir() + "/" + strconv.FormatUint(uint64(f), 10)
}

// knownFloor is the floor as this client saw it last. The first time it is read, and made
// where there is none.
func (s *session) knownFloor(ctx context.Context) (floor, error) {
	if f := s.cfg.floor.Load(); f != nil {
		return *f, nil
	}
	f, _, err := s.readFloor(ctx)
	if err == nil {
		s.cfg.floor.Store(&f)
	}
	return f, err
}

// counted adds the floor to the details of a node, whose creation depends on it.
func (s *session) counted(ctx context.Context, key string, d details) (details, error) {
	f, err := s.knownFloor(ctx)
	if err != nil {
		return d, readError(key, err)
	}
	d.Floor = f
	return d, nil
}

// errFloorMoved says that nothing was created, since the floor is another one than was
// known.
var errFloorMoved = fmt.Errorf("%w: the floor of the tokens changes all the time", backend.ErrUnavailable)

// floorPatience bounds the creations in a row that come too late for a floor that others
// raise. It is generous: while services change stores it moves with each acquisition.
const floorPatience = 64

// floorRounds bounds the attempts at a floor that others change at that very moment.
const floorRounds = 8

// readFloor reads the floor as of now, with the version of the node above it.
func (s *session) readFloor(ctx context.Context) (floor, int32, error) {
	dir := s.cfg.floorDir()
	for range floorRounds {
		if err := s.sync(ctx, s.cfg.root()); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return 0, 0, err
		}
		children, stat, err := s.children(ctx, dir)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			if err := s.makeFloorDir(ctx); err != nil {
				return 0, 0, err
			}
			continue
		case err != nil:
			return 0, 0, err
		case len(children) > 0:
			f, err := floorOf(dir, children)
			return f, stat.Version, err
		}
		err = s.setFloor(ctx, stat.Version, &zk.CreateRequest{Path: s.cfg.floorPath(floor(max(time.Now().UnixMicro()-stat.Czxid, 0))), Acl: s.cfg.acl})
		if err != nil && !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode) {
			return 0, 0, err
		}
	}
	return 0, 0, fmt.Errorf("zklock: %w: the floor of the tokens changes all the time", backend.ErrUnavailable)
}

// floorOf reads the floor from the names of its node.
func floorOf(dir string, children []string) (floor, error) {
	f, err := strconv.ParseUint(children[0], 10, 64)
	if err != nil || f > maxFloor || len(children) > 1 {
		return 0, fmt.Errorf("%w: the children of %q are no floor of tokens: something else has made them; give this key space another prefix", backend.ErrPermanent, dir)
	}
	return floor(f), nil
}

// checkFloor refuses what is no floor. There may be none yet.
func (s *session) checkFloor(ctx context.Context) error {
	dir := s.cfg.floorDir()
	a := askAgain(ctx, s, func(c *zk.Conn) ([]string, error) {
		children, _, err := c.Children(dir)
		return children, err
	})
	if errors.Is(a.err, zk.ErrNoNode) || a.err == nil && len(a.value) == 0 {
		return nil
	}
	if a.err == nil {
		_, a.err = floorOf(dir, a.value)
	}
	return a.err
}

// setFloor changes the floor on the condition that nobody has since the version was read.
func (s *session) setFloor(ctx context.Context, version int32, ops ...any) error {
	ops = append([]any{&zk.SetDataRequest{Path: s.cfg.floorDir(), Version: version}}, ops...)
	return ask(ctx, s, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) }, nil).err
}

func (s *session) makeFloorDir(ctx context.Context) error {
	for tries := 0; ; tries++ {
		err := ask(ctx, s, func(c *zk.Conn) (string, error) { return c.Create(s.cfg.floorDir(), nil, 0, s.cfg.acl) }, nil).err
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode) || tries == 3:
			return err
		}
		if err := s.makeRoot(ctx); err != nil {
			return err
		}
	}
}

// RaiseFloor makes every token that is granted from now on larger than the given one, also
// to clients that were opened before, and to those who wait already. Leases keep the tokens
// that they have.
func (b *zkBackend) RaiseFloor(ctx context.Context, above uint64) error {
	if above >= maxFloor {
		return fmt.Errorf("zklock: %w: a floor of %d is too large: at most %d", backend.ErrInvalid, above, uint64(maxFloor-1))
	}
	s, err := b.session()
	if err != nil {
		return err
	}
	for range floorRounds {
		f, version, err := s.readFloor(ctx)
		if err != nil {
			return writeError("", err)
		}
		if uint64(f) >= above {
			return nil // and every token is larger than its floor
		}
		err = s.setFloor(ctx, version,
			&zk.DeleteRequest{Path: s.cfg.floorPath(f), Version: -1},
			&zk.CreateRequest{Path: s.cfg.floorPath(floor(above)), Acl: s.cfg.acl})
		switch {
		case err == nil:
			raised := floor(above)
			s.cfg.floor.Store(&raised)
			return nil
		case !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode):
			return writeError("", err)
		}
	}
	return fmt.Errorf("zklock: %w: the floor of the tokens changes all the time", backend.ErrUnavailable)
}

// watchedFloor is the floor as it is while its channel has not been closed.
type watchedFloor struct {
	floor
	changed <-chan zk.Event
}

// mostRetired bounds the watches of earlier connections: that of the floor stays with the
// client library until somebody changes the floor.
const mostRetired = 64

// presentFloor is the floor as of what was seen last on this connection, on which a server
// tells of a change before it shows what came after it. While nobody changes it, it is not
// asked for again.
func (s *session) presentFloor(ctx context.Context) (floor, error) {
	s.mu.Lock()
	if now := s.floor; now.changed != nil && !fired(now.changed) {
		defer s.mu.Unlock()
		return now.floor, nil
	}
	era, watched := s.era, len(s.retired) < mostRetired
	s.mu.Unlock()
	dir := s.cfg.floorDir()
	var changed <-chan zk.Event
	if watched {
		var there bool
		var err error
		if changed, there, err = s.watch(ctx, dir); err == nil && !there {
			err = zk.ErrNoNode
		}
		if err != nil {
			return 0, err
		}
	}
	children, _, err := s.children(ctx, dir)
	if err != nil {
		return 0, err
	}
	if len(children) == 0 {
		return 0, zk.ErrNoNode
	}
	f, err := floorOf(dir, children)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.era == era {
		s.floor = watchedFloor{f, changed}
	}
	return f, err
}

// settle gives the first in the queue a token that is larger than all before it. The floor
// may have been raised since the node was created, and a hold that was granted in between
// has a token above it. So the token is counted on from the floor as it is, and from the last
// change of the queue; and as those behind were created before that, the floor is raised by
// the difference, for them to settle in turn.
func (n *node) settle(ctx context.Context) error {
	s := n.s
	for range floorPatience {
		f, err := s.presentFloor(ctx)
		if errors.Is(err, zk.ErrNoNode) {
			return nil // somebody has deleted it: the next who comes makes it anew
		}
		if err != nil || f == n.countedFrom() {
			return err
		}
		f, version, err := s.readFloor(ctx)
		if err != nil {
			return err
		}
		data, stat, err := s.get(ctx, n.path)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			n.forget()
			return fmt.Errorf("zklock: key %q: the node in the queue was removed: %w", n.key, backend.ErrTakenOver)
		case err != nil:
			return err
		}
		d := decodeHolder(data, stat)
		if stat.Version > d.Settled {
			return n.wasRevoked()
		}
		if n.settledAt(d.Floor, stat.Version); d.Floor == f {
			continue // by an attempt that had no answer
		}
		_, queue, err := s.children(ctx, n.dir)
		if err != nil {
			return err
		}
		raised := f + floor(queue.Pzxid-stat.Czxid)
		d.Floor, d.Settled, d.Since = raised, stat.Version+1, time.Time{}
		err = s.setFloor(ctx, version,
			&zk.DeleteRequest{Path: s.cfg.floorPath(f), Version: -1},
			&zk.CreateRequest{Path: s.cfg.floorPath(raised), Acl: s.cfg.acl},
			&zk.SetDataRequest{Path: n.path, Data: d.encode(), Version: stat.Version})
		switch {
		case err == nil:
			s.cfg.floor.Store(&raised)
			n.settledAt(raised, d.Settled)
			return nil
		case !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode):
			return err
		}
	}
	return errFloorMoved
}

// countedFrom is the floor that the token is counted on from.
func (n *node) countedFrom() floor {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return n.floor
}

// settledAt notes what the node says of its floor, in this version of its data.
func (n *node) settledAt(f floor, version int32) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	n.floor, n.data = f, version
}

// LastToken is the token that the newest transaction would make. Only a write tells which
// that is, so the node of the floor is written with what it has.
func (b *zkBackend) LastToken(ctx context.Context) (uint64, error) {
	s, err := b.session()
	if err != nil {
		return 0, err
	}
	for range floorRounds {
		f, version, err := s.readFloor(ctx)
		if err != nil {
			return 0, writeError("", err)
		}
		a := ask(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(s.cfg.floorDir(), nil, version) }, nil)
		switch {
		case a.err == nil:
			return uint64(f) + uint64(a.value.Mzxid), nil
		case !errors.Is(a.err, zk.ErrBadVersion) && !errors.Is(a.err, zk.ErrNoNode):
			return 0, writeError("", a.err)
		}
	}
	return 0, errFloorMoved
}
