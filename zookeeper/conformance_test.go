package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/linear"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/internal/suites"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	cfg := conformanceOfURL(server.URL())
	cfg.Judge = linear.Judge(t)
	cfg.Proxy = &conformance.Proxy{
		Server: server.Addr(),
		Open: func(ctx context.Context, addr string) (lock.Locker, error) {
			return lock.Open(ctx, server.URLAt(addr), &lock.Options{TTL: cfg.TTL})
		},
	}
	cfg.Guarded = guardedOn(t, server)
	cfg.Untouched = func(context.Context) (conformance.Store, error) {
		prefix := "untouched-" + backend.NewID().Hex()
		conn := rawOn(t, server)
		return conformance.Store{
			Open: func(ctx context.Context) (backend.Backend, error) {
				return backend.DefaultMux.Open(ctx, server.URL()+"?prefix="+prefix, backend.OpenConfig{TTL: conformanceTTL})
			},
			Contents: func(context.Context) (string, error) {
				children, _, err := conn.Children("/" + prefix)
				return strings.Join(children, " "), err
			},
		}, nil
	}
	conformance.Run(t, cfg)
}

func TestAlsoOnThreeMembers(t *testing.T) {
	suites.Also(t)
	t.Parallel()
	members := servertest.ZooKeeperCluster(t, 3, servertest.WithControl())
	var hosts []string
	for _, s := range members {
		hosts = append(hosts, s.Addr())
	}
	listsOnALateMember(t, members)
	cfg := conformanceOfURL("zk://" + strings.Join(hosts, ","))
	cfg.Name = "zookeeper, three members"
	cfg.Judge = linear.Judge(t)
	cfg.Guarded = guardedOn(t, members[0])
	conformance.Run(t, cfg)
}

// listsOnALateMember lists by a member that is told of a grant and asked for the list at once: it
// stood still meanwhile.
func listsOnALateMember(t *testing.T, members []*servertest.Server) {
	leader := slices.IndexFunc(members, func(s *servertest.Server) bool { return leads(t, s) })
	late := members[(leader+1)%len(members)]
	prefix := "lists-" + backend.NewID().Hex()
	by := backendOn(t, &Options{Prefix: prefix}, members[leader])
	on := backendOn(t, &Options{Prefix: prefix}, late)
	for i := range 20 {
		key := fmt.Sprint("key ", i)
		late.Freeze(t)
		_, err := by.Try(t.Context(), backend.Request{Key: key, ID: backend.NewID(), TTL: 30 * time.Second})
		require.NoError(t, err)
		shown, listed := 0, make(chan error)
		go func() {
			listed <- on.List(t.Context(), key, func(backend.Record) bool { shown++; return true })
		}()
		time.Sleep(2 * time.Millisecond)
		late.Resume(t)
		require.NoError(t, <-listed)
		require.Equal(t, 1, shown, "keys in a list that was asked for after the grant of %q", key)
	}
}

// conformanceTTL is four ticks of the test servers.
const conformanceTTL = 2 * time.Second

// conformanceOfURL also makes the Configs in the processes that the suite starts.
func conformanceOfURL(url string) conformance.Config {
	var clients openedClients
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			b, err := backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: conformanceTTL})
			if err == nil {
				clients.add(b.(*zkBackend))
			}
			return b, err
		},
		EndSession: clients.endSession,
		Child:      url,
		TTL:        conformanceTTL,
		Budget:     servertest.Budget(),
	}
}

// openedClients are those whose sessions the suite may end.
type openedClients struct {
	mu  sync.Mutex
	all []*zkBackend
}

func (o *openedClients) add(b *zkBackend) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, b)
}

// endSession ends the session of the last place in the queue.
func (o *openedClients) endSession(ctx context.Context, key string) error {
	o.mu.Lock()
	all := slices.Clone(o.all)
	o.mu.Unlock()
	sessions := map[int64]*session{}
	for _, b := range all {
		if s, err := b.session(); err == nil && s.ready(ctx) == nil {
			sessions[s.conn.SessionID()] = s
		}
	}
	for _, looker := range sessions {
		path, owner, err := last(ctx, looker, key)
		s := sessions[owner]
		if err != nil || s == nil || looker == s {
			continue // its own may be ended just now, and it would not see what it leaves
		}
		return endOnServer(ctx, s, s.conn.Server(), func() bool {
			stat, err := looker.exists(ctx, path)
			return err == nil && stat == nil || s.ended()
		})
	}
	return fmt.Errorf("no client sees who waits for %q", key)
}

// last is the path of the last place in the queue, and whose it is.
func last(ctx context.Context, s *session, key string) (path string, owner int64, err error) {
	dir := s.cfg.dirOf(key)
	if err = s.sync(ctx, dir); err != nil {
		return "", 0, err
	}
	children, _, err := s.children(ctx, dir)
	czxid := int64(0)
	for _, name := range children {
		switch _, stat, err := s.get(ctx, dir+"/"+name); {
		case errors.Is(err, zk.ErrNoNode):
		case err != nil: // the last place may be the one that was not seen
			return "", 0, err
		case stat.Czxid > czxid:
			path, owner, czxid = dir+"/"+name, stat.EphemeralOwner, stat.Czxid
		}
	}
	return path, owner, err
}

// guardedOn writes a node beside the locks.
func guardedOn(t *testing.T, server *servertest.Server) *conformance.GuardedWrite {
	conn := rawOn(t, server)
	if _, err := conn.Create("/guarded", nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNodeExists) {
		require.NoError(t, err)
	}
	var made sync.Map
	path := func(key string) (string, error) {
		p := "/guarded/" + encodeKey(key)
		if _, ok := made.Load(p); !ok {
			if _, err := conn.Create(p, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return "", err
			}
			made.Store(p, true)
		}
		return p, nil
	}
	return &conformance.GuardedWrite{
		Write: func(ctx context.Context, lease lock.Lease, value string) error {
			p, err := path(lease.Key())
			if err == nil {
				_, err = Guarded(ctx, lease, &zk.SetDataRequest{Path: p, Data: []byte(value), Version: -1})
			}
			return err
		},
		Read: func(_ context.Context, key string) (string, error) {
			p, err := path(key)
			if err == nil {
				_, err = conn.Sync(p)
			}
			if err != nil {
				return "", err
			}
			data, _, err := conn.Get(p)
			return string(data), err
		},
	}
}
