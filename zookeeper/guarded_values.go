package zklock

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/guarded"
)

var _ guarded.Keeper = (*zkBackend)(nil)

// GuardedValues implements guarded.Keeper with nodes below one beside the locks, whose
// name is not that of a key.
func (b *zkBackend) GuardedValues(ctx context.Context) (guarded.Values, error) {
	v := &guardedValues{b: b, made: map[string]struct{}{}}
	err := v.use(func(s *session) error {
		v.dir = s.cfg.root() + "/%values-" + rand.Text()
		return v.create(ctx, s, v.dir)
	})
	if err != nil {
		return nil, openError(err)
	}
	return v, nil
}

type guardedValues struct {
	b   *zkBackend
	dir string

	mu   sync.Mutex
	made map[string]struct{}
}

// use has the session that there is.
func (v *guardedValues) use(f func(s *session) error) error {
	s, err := v.b.session()
	if err != nil {
		return err
	}
	return f(s)
}

func (v *guardedValues) create(ctx context.Context, s *session, path string) error {
	err := ask(ctx, s, func(c *zk.Conn) (string, error) { return c.Create(path, nil, 0, s.cfg.acl) }, nil).err
	if errors.Is(err, zk.ErrNodeExists) {
		return nil
	}
	return err
}

// node is the node of the key's value, which is made when it is used first.
func (v *guardedValues) node(ctx context.Context, key string) (string, error) {
	path := v.dir + "/" + encodeKey(key)
	v.mu.Lock()
	_, there := v.made[path]
	v.mu.Unlock()
	if there {
		return path, nil
	}
	err := v.use(func(s *session) error { return v.create(ctx, s, path) })
	if err == nil {
		v.mu.Lock()
		v.made[path] = struct{}{}
		v.mu.Unlock()
	}
	return path, err
}

func (v *guardedValues) Write(ctx context.Context, lease lock.Lease, value string) error {
	path, err := v.node(ctx, lease.Key())
	if err != nil {
		return err
	}
	_, err = Guarded(ctx, lease, &zk.SetDataRequest{Path: path, Data: []byte(value), Version: -1})
	return err
}

func (v *guardedValues) Read(ctx context.Context, key string) (string, error) {
	path := v.dir + "/" + encodeKey(key)
	var value string
	err := v.use(func(s *session) error {
		if err := s.sync(ctx, v.dir); err != nil {
			return err
		}
		data, _, err := s.get(ctx, path)
		value = string(data)
		return err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return "", nil
	}
	return value, err
}

func (v *guardedValues) Remove(ctx context.Context) error {
	return v.use(func(s *session) error {
		if err := s.sync(ctx, v.dir); err != nil {
			return err
		}
		names, _, err := s.children(ctx, v.dir)
		for _, name := range names {
			err = errors.Join(err, s.delete(ctx, v.dir+"/"+name))
		}
		return errors.Join(err, s.delete(ctx, v.dir))
	})
}
