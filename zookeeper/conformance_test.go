package zklock

import (
	"context"
	"errors"
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
)

func TestConformance(t *testing.T) {
	t.Parallel()
	server := servertest.SharedZooKeeper(t)
	cfg := conformanceOfURL(server.URL())
	cfg.Judge = linear.Judge(t)
	cfg.Guarded = guardedOn(t, server)
	conformance.Run(t, cfg)
}

func TestConformanceOfCluster(t *testing.T) {
	t.Parallel()
	members := servertest.ZooKeeperCluster(t, 3)
	var hosts []string
	for _, s := range members {
		hosts = append(hosts, s.Addr())
	}
	cfg := conformanceOfURL("zk://" + strings.Join(hosts, ","))
	cfg.Name = "zookeeper, three members"
	cfg.Judge = linear.Judge(t)
	cfg.Guarded = guardedOn(t, members[0])
	conformance.Run(t, cfg)
}

// conformanceTTL is four ticks of the test servers.
const conformanceTTL = 2 * time.Second

// conformanceOfURL also makes the Configs in the processes that the suite starts.
func conformanceOfURL(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: conformanceTTL})
		},
		Child:  url,
		TTL:    conformanceTTL,
		Budget: 15 * time.Second,
	}
}

// guardedOn writes a node beside the locks.
func guardedOn(t *testing.T, server *servertest.Server) *conformance.GuardedWrite {
	conn := rawOn(t, server)
	_, err := conn.Create("/guarded", nil, 0, zk.WorldACL(zk.PermAll))
	require.NoError(t, err)
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
