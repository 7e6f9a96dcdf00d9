package etcdflawed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(servertest.StopAfter(m)) }

var collection = flawedtest.New("etcdflawed", 4, All(), Healthy())

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func TestFlawed(t *testing.T) { t.Parallel(); collection.CheckFlawed(t, run) }

func TestHealthy(t *testing.T) { t.Parallel(); collection.CheckHealthy(t, run) }

var run = flawedtest.Run{
	Server: func(t *testing.T, _ Lock) any {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + servertest.SharedEtcd(t).Addr()}, Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		return client
	},
	Tune: func(_ Lock, cfg *conformance.Config) {
		cfg.Budget = 5 * time.Second
		// What the mistakes are about.
		cfg.Only = []string{"LostBeforeTakeover", "ReentrantExplicit", "WaiterSessionCheck", "QueueOrder", "ReleaseOwnOnly", "RenewByHand"}
	},
	Patience: time.Minute,
}
