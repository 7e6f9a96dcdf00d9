package zklock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
)

// tryRounds bounds the looks at a key that others take and leave at that very moment.
const tryRounds = 4

// Try looks at the key, and if nobody is there creates a node on the condition that
// no other was created meanwhile: the version of the key's node grows with each. So a
// refused request never has a node, and a granted one is the first in the queue. A key
// that this client has left free needs no look, until others use it too.
//
// When the session turns out to have expired, as after a pause of this process, it has
// taken what was asked in it along, and the next session is asked.
func (b *zkBackend) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	for sessions := 1; ; sessions++ {
		s, err := b.session()
		if err != nil {
			return backend.Grant{}, err
		}
		g, err := s.try(ctx, req)
		if !errors.Is(err, errGone) || sessions == trySessions || ctx.Err() != nil {
			return g, err
		}
	}
}

// trySessions bounds the sessions in a row that end under a Try.
const trySessions = 3

func (s *session) try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	n, isNew, err := s.record(req)
	if err != nil {
		return backend.Grant{}, keyError(req.Key, err)
	}
	if !isNew {
		g, again, err := n.repeat(ctx)
		if !again {
			return g, err
		}
		if n, _, err = s.record(req); err != nil {
			return backend.Grant{}, keyError(req.Key, err)
		}
	}
	g, err := n.try(ctx, detailsOf(req))
	if err != nil {
		n.forgetUnlessDoomed()
	}
	return g, err
}

// repeat answers a request whose acquisition is known already. The second result is
// true when it has to begin anew.
func (n *node) repeat(ctx context.Context) (backend.Grant, bool, error) {
	n.stands(ctx) // or not; the request that creates it has been answered
	n.s.mu.Lock()
	granted, doomed, token := n.granted && !n.revoked, n.doomed, n.token()
	n.s.mu.Unlock()
	switch {
	case doomed:
		if _, err := n.remove(ctx); err != nil {
			return backend.Grant{}, false, writeError(n.key, err)
		}
		return backend.Grant{}, true, nil
	case !granted:
		return backend.Grant{}, false, &backend.HeldError{Key: n.key}
	}
	v, err := n.renew(ctx)
	if errors.Is(err, backend.ErrNotHeld) {
		if n.keepsOut() {
			return backend.Grant{}, false, &backend.HeldError{Key: n.key}
		}
		n.doom()
		return n.repeat(ctx)
	}
	return backend.Grant{Token: token, Holds: 1, Validity: v}, false, err
}

// keepsOut reports whether the node is that of a revoked hold, which has not expired.
func (n *node) keepsOut() bool {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return n.granted && n.revoked && !n.doomed
}

// forgetUnlessDoomed drops the record of a request that was refused. A doomed one is
// the reaper's.
func (n *node) forgetUnlessDoomed() {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if !n.doomed && n.s.places[n.id] == n {
		delete(n.s.places, n.id)
	}
}

func (n *node) try(ctx context.Context, d details) (backend.Grant, error) {
	s := n.s
	d, err := s.counted(ctx, n.key, d)
	if err != nil {
		return backend.Grant{}, err
	}
	if version, ok := s.freeAt(n.key); ok {
		g, err := n.take(ctx, d, version)
		switch {
		case err == nil, errors.Is(err, backend.ErrHeld):
			return g, err
		case !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNoNode):
			return backend.Grant{}, writeError(n.key, err)
		}
		s.seen(n.key, anyVersion)
	}
	children, stat, err := s.children(ctx, n.dir)
	if err == nil {
		s.seen(n.key, stat.Version)
	}
	for range tryRounds {
		if errors.Is(err, zk.ErrNoNode) {
			if err = s.makeDir(ctx, n.dir); err != nil {
				return backend.Grant{}, readError(n.key, err)
			}
			children, stat = nil, &zk.Stat{}
		}
		if err != nil {
			return backend.Grant{}, readError(n.key, err)
		}
		if p, taken := first(children); taken > 0 {
			// What a server shows may be old: that somebody is there is believed only
			// when the server has caught up.
			held, ferr := s.holder(ctx, n.key, p)
			if held != nil || ferr != nil {
				return backend.Grant{}, errors.Join(ferr, asError(held))
			}
			children, stat, err = s.children(ctx, n.dir)
			continue
		}
		if d, err = s.counted(ctx, n.key, d); err != nil {
			return backend.Grant{}, err
		}
		g, cerr := n.take(ctx, d, stat.Version)
		if cerr == nil || errors.Is(cerr, backend.ErrHeld) {
			return g, cerr
		}
		if !errors.Is(cerr, zk.ErrBadVersion) && !errors.Is(cerr, zk.ErrNoNode) {
			return backend.Grant{}, writeError(n.key, cerr)
		}
		children, stat, err = s.children(ctx, n.dir)
	}
	return backend.Grant{}, &backend.HeldError{Key: n.key}
}

// take creates the node of a try, which was free at the version. Where the answer
// does not show that the node is alone, a look does: there may be children that are
// not ours; and the version alone would be no proof if the node of the key was
// removed and made again meanwhile, or if its version has come to -1, which stands
// for any.
func (n *node) take(ctx context.Context, d details, version int32) (backend.Grant, error) {
	c, err := n.create(ctx, d, version)
	if err != nil {
		return backend.Grant{}, err
	}
	if !c.alone {
		if err := n.mustLead(ctx); err != nil {
			return backend.Grant{}, err
		}
	}
	return n.grant(c.Validity)
}

// mustLead removes the node, and refuses, unless no place is before it.
func (n *node) mustLead(ctx context.Context) error {
	children, _, err := n.s.children(ctx, n.dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		n.doom()
		return fmt.Errorf("%w: a look at what is before the node: %w", backend.ErrOutcomeUnknown, failure.Unmarked(err))
	}
	a, found := aheadOf(children, n.own())
	if found && a.n == 0 {
		return nil
	}
	if _, err := n.remove(ctx); err != nil {
		return fmt.Errorf("%w: removing the node of a try that is refused: %w", backend.ErrOutcomeUnknown, failure.Unmarked(err))
	}
	if !found {
		return fmt.Errorf("%w: the node was removed by somebody else", backend.ErrUnavailable)
	}
	held, err := n.s.holder(ctx, n.key, a.last)
	if held == nil && err == nil {
		held = &backend.HeldError{Key: n.key} // it has gone since
	}
	return errors.Join(err, asError(held))
}

func asError(h *backend.HeldError) error {
	if h == nil {
		return nil
	}
	return h
}

// grant makes the node a hold of a session that is proven alive.
func (n *node) grant(v backend.Validity) (backend.Grant, error) {
	s := n.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case n.doomed || s.ended():
		return backend.Grant{}, fmt.Errorf("zklock: key %q: %w", n.key, errGone)
	case n.revoked:
		return backend.Grant{}, n.wasRevoked()
	}
	n.granted = true
	n.expiry = max(n.expiry, s.clock.Now().Add(n.ttl))
	return backend.Grant{Token: n.token(), Holds: 1, Validity: v}, nil
}

// Renew confirms by a write that the hold's node exists, and with it the session.
func (b *zkBackend) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if err := ctx.Err(); err != nil {
		return backend.Validity{}, err
	}
	s, err := b.session()
	if err != nil {
		return backend.Validity{}, err
	}
	n, err := s.held(hold)
	if err != nil {
		return backend.Validity{}, err
	}
	return n.renew(ctx)
}

// held is the node of a hold that has not ended, as far as is known here.
func (s *session) held(hold backend.Hold) (*node, error) {
	n := s.find(hold.ID)
	if n == nil || n.key != hold.Key {
		return nil, notHeld(hold.Key)
	}
	return n, n.alive(s.clock.Now())
}

func (n *node) renew(ctx context.Context) (backend.Validity, error) {
	if err := n.alive(n.s.clock.Now()); err != nil {
		return backend.Validity{}, err
	}
	v, err := n.confirm(ctx)
	if err != nil {
		return backend.Validity{}, writeError(n.key, err)
	}
	return n.renewed(v)
}

// renewed lengthens a hold whose node was confirmed.
func (n *node) renewed(v backend.Validity) (backend.Validity, error) {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	if n.doomed || n.s.places[n.id] != n {
		return backend.Validity{}, notHeld(n.key)
	}
	n.expiry = max(n.expiry, v.Sent.Add(n.ttl))
	return v, nil
}

// alive returns why the node is no hold, or is none any more.
func (n *node) alive(now backend.Instant) error {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	switch {
	case !n.granted || n.doomed:
		return notHeld(n.key)
	case n.revoked:
		return n.wasRevoked()
	case now >= n.expiry:
		n.doomed = true
		return fmt.Errorf("zklock: key %q: %w", n.key, backend.ErrExpired)
	}
	return nil
}

// Release deletes the node of the hold, unless it is known to be revoked. The node of
// an acquisition that this session does not know is looked for by its name.
func (b *zkBackend) Release(ctx context.Context, hold backend.Hold) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := b.session()
	if err != nil {
		return err
	}
	n := s.find(hold.ID)
	if n != nil && n.key == hold.Key {
		deleted, err := n.remove(ctx)
		switch {
		case err != nil:
			return writeError(hold.Key, err)
		case n.keepsOut():
			return n.wasRevoked()
		case !deleted:
			return fmt.Errorf("zklock: key %q: its node is gone: %w", hold.Key, backend.ErrNotHeld)
		}
		return nil
	}
	dir := s.cfg.dirOf(hold.Key)
	name, err := s.search(ctx, dir, nodeName(hold.ID))
	if err != nil {
		return readError(hold.Key, err)
	}
	if name == "" {
		return notHeld(hold.Key)
	}
	err = s.delete(ctx, dir+"/"+name)
	if errors.Is(err, zk.ErrNoNode) {
		return notHeld(hold.Key)
	}
	return writeError(hold.Key, err)
}

// details is what a node says about its owner.
type details struct {
	backend.Holder
	TTL   int64 `json:"ttl_ms"`
	Floor floor `json:"floor"`
	// Settled is the version of the data, unless the node is revoked: its client has
	// written it so often.
	Settled int32 `json:"settled,omitempty"`
}

// detailsOf are those of the node for the request, whose floor is not known yet.
func detailsOf(req backend.Request) details {
	d := details{Holder: req.Holder, TTL: req.TTL.Milliseconds()}
	d.Since = time.Time{}
	return d
}

func (d details) encode() []byte {
	text, err := json.Marshal(d)
	if err != nil {
		return []byte("{}") // strings and numbers never fail
	}
	return text
}

func decodeHolder(data []byte, stat *zk.Stat) details {
	var d details
	if json.Unmarshal(data, &d) != nil {
		d = details{}
	}
	d.Since = time.UnixMilli(stat.Ctime).UTC()
	return d
}

func (d details) ttl() time.Duration { return max(time.Duration(d.TTL)*time.Millisecond, 0) }

// holder returns the refusal by the node that is due, as of now, or nil when the key
// is free. p is what was seen before.
func (s *session) holder(ctx context.Context, key string, p place) (*backend.HeldError, error) {
	dir := s.cfg.dirOf(key)
	if err := s.sync(ctx, dir); err != nil {
		return nil, readError(key, err)
	}
	for range tryRounds {
		data, stat, err := s.get(ctx, dir+"/"+p.name)
		switch {
		case err == nil:
			d := decodeHolder(data, stat)
			return &backend.HeldError{Key: key, Holder: d.Holder, Remaining: d.ttl()}, nil
		case !errors.Is(err, zk.ErrNoNode):
			return nil, readError(key, err)
		}
		children, _, err := s.children(ctx, dir)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return nil, readError(key, err)
		}
		next, taken := first(children)
		if taken == 0 {
			return nil, nil //nolint:nilnil // nobody holds the key, which is neither
		}
		p = next
	}
	return &backend.HeldError{Key: key}, nil
}

func (s *session) get(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	type found struct {
		data []byte
		stat *zk.Stat
	}
	a := ask(ctx, s, func(c *zk.Conn) (found, error) {
		data, stat, err := c.Get(path)
		return found{data, stat}, err
	}, nil)
	return a.value.data, a.value.stat, a.err
}
