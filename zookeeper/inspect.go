package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock/backend"
)

// Inspect shows the node that is due, which holds the key, and counts those behind it.
// Its time is the server's, and says when it took its place in the queue. ZooKeeper
// tells nobody when a session will end, so what remains is at most the TTL.
func (b *zkBackend) Inspect(ctx context.Context, key string) (backend.Record, error) {
	s, err := b.session()
	if err != nil {
		return backend.Record{}, err
	}
	rec, _, err := s.inspect(ctx, key)
	return rec, err
}

func (s *session) inspect(ctx context.Context, key string) (backend.Record, string, error) {
	dir := s.cfg.dirOf(key)
	if err := s.sync(ctx, dir); err != nil {
		return backend.Record{}, "", readError(key, err)
	}
	for range tryRounds {
		children, _, err := s.children(ctx, dir)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return backend.Record{}, "", readError(key, err)
		}
		p, n := first(children)
		if n == 0 {
			return backend.Record{}, "", notHeld(key)
		}
		path := dir + "/" + p.name
		data, stat, err := s.get(ctx, path)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			continue
		case err != nil:
			return backend.Record{}, "", readError(key, err)
		}
		d := decodeHolder(data, stat)
		return backend.Record{
			Key: key, Token: uint64(d.Floor) + uint64(stat.Czxid), Holds: 1, Waiters: n - 1, Remaining: d.ttl(), Holder: d.Holder,
			Revoked: stat.Version > d.Settled,
		}, path, nil
	}
	return backend.Record{}, "", fmt.Errorf("zklock: key %q: %w: its holders change too fast to be shown", key, backend.ErrUnavailable)
}

// ForceRelease deletes the node of the holder if it has the token. The name of a node
// is never given out again, so that another holder cannot be hit.
func (b *zkBackend) ForceRelease(ctx context.Context, key string, token uint64) error {
	s, path, err := b.heldWith(ctx, key, token)
	if err != nil {
		return err
	}
	if err := s.delete(ctx, path); errors.Is(err, zk.ErrNoNode) {
		return notHeld(key)
	} else if err != nil {
		return writeError(key, err)
	}
	return nil
}

// Revoke writes to the node of the holder, which fails its renewals and leaves it in
// its place in the queue. The holder's client, which owns the node, removes it when the
// hold has expired; the end of its session does so earlier.
func (b *zkBackend) Revoke(ctx context.Context, key string, token uint64) error {
	s, path, err := b.heldWith(ctx, key, token)
	if err != nil {
		return err
	}
	data, stat, err := s.get(ctx, path)
	if err == nil && stat.Version == decodeHolder(data, stat).Settled {
		err = ask(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, data, stat.Version) }, nil).err
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return notHeld(key)
	case errors.Is(err, zk.ErrBadVersion):
		return nil // somebody else has revoked it
	}
	return writeError(key, err)
}

// heldWith finds the node that holds the key with the token.
func (b *zkBackend) heldWith(ctx context.Context, key string, token uint64) (*session, string, error) {
	s, err := b.session()
	if err != nil {
		return nil, "", err
	}
	rec, path, err := s.inspect(ctx, key)
	if err == nil && rec.Token != token {
		err = notHeld(key)
	}
	return s, path, err
}

// List shows the keys with a node, one after the other. The names are read after a sync, as each
// key is: a member that lags would not know the latest.
func (b *zkBackend) List(ctx context.Context, prefix string, visit func(backend.Record) bool) error {
	s, err := b.session()
	if err != nil {
		return err
	}
	if err := s.sync(ctx, s.cfg.root()); err != nil {
		return fmt.Errorf("zklock: listing keys: %w", describe(err))
	}
	elements, _, err := s.children(ctx, s.cfg.root())
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("zklock: listing keys: %w", describe(err))
	}
	for _, element := range elements {
		key, ok := decodeKey(element)
		if !ok || !strings.HasPrefix(key, prefix) {
			continue
		}
		rec, _, err := s.inspect(ctx, key)
		switch {
		case errors.Is(err, backend.ErrNotHeld):
			continue
		case err != nil:
			return err
		case !visit(rec):
			return nil
		}
	}
	return nil
}
