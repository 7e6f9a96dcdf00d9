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
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(servertest.StopAfter(m)) }

// TestTheSuiteCatchesThem runs the subjects that the mistakes are about: the rule
// that is named for the lock has to be among those that fail.
func TestTheSuiteCatchesThem(t *testing.T) {
	t.Parallel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + servertest.SharedEtcd(t).Addr()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	rules := map[string]bool{}
	for _, r := range conformance.Rules() {
		rules[r.Name] = true
	}
	for _, l := range append(All(), Healthy) {
		t.Run(l.ID, func(t *testing.T) {
			t.Parallel()
			cfg := l.Config(client)
			cfg.Budget = 5 * time.Second
			cfg.Only = []string{"LostBeforeTakeover", "ExclusiveWithinLocker", "WaiterSessionCheck", "QueueOrder", "ReleaseOwnOnly"}
			report, err := conformance.Check(t.Context(), cfg)
			require.NoError(t, err)
			failed := map[string]string{}
			for _, r := range report.Results {
				if r.Verdict == conformance.Fail {
					failed[r.Rule] = r.Evidence
				}
			}
			if l.Rule == "" {
				require.Empty(t, failed)
				return
			}
			require.True(t, rules[l.Rule])
			require.FileExists(t, l.File)
			for _, text := range []string{l.Title, l.Summary, l.Seen, l.Instead} {
				require.NotEmpty(t, text)
			}
			require.Contains(t, failed, l.Rule)
			t.Logf("%s", failed[l.Rule])
		})
	}
}
