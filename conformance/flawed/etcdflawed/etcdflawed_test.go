package etcdflawed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/mortiselock/lock/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(servertest.StopAfter(m)) }

// collection is what is written about the locks.
var collection = flawedtest.New("etcdflawed", mistakes(All())...)

func mistakes(locks []Lock) []flawedtest.Mistake {
	var all []flawedtest.Mistake
	for _, l := range locks {
		all = append(all, mistake(l))
	}
	return all
}

func mistake(l Lock) flawedtest.Mistake {
	return flawedtest.Mistake{ID: l.ID, Title: l.Title, Summary: l.Summary, Seen: l.Seen, Instead: l.Instead, File: l.File, Rule: l.Rule}
}

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

// examine runs the subjects that the mistakes are about.
func examine(t *testing.T, client *clientv3.Client, l Lock) *flawedtest.Finding {
	cfg := l.Config(client)
	cfg.Budget = 5 * time.Second
	cfg.Only = []string{"LostBeforeTakeover", "ReentrantExplicit", "WaiterSessionCheck", "QueueOrder", "ReleaseOwnOnly"}
	return flawedtest.Examine(t, mistake(l), cfg, time.Minute)
}

func connect(t *testing.T) *clientv3.Client {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + servertest.SharedEtcd(t).Addr()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return client
}

// TestFlawed: the suite catches every broken lock by the rule that is named for it.
func TestFlawed(t *testing.T) {
	t.Parallel()
	client := connect(t)
	t.Run("locks", func(t *testing.T) {
		for _, l := range All() {
			t.Run(l.ID+" "+l.Title, func(t *testing.T) {
				t.Parallel()
				examine(t, client, l).RequireCaught(t)
			})
		}
	})
}

// TestHealthy is the control: the lock that the broken ones are made of passes.
func TestHealthy(t *testing.T) {
	t.Parallel()
	examine(t, connect(t), Healthy).RequireHealthy(t)
}
