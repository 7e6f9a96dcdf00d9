package servertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClusterSurvivesOneMember(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		trial
		start func(t TB, n int, opts ...Option) []*Server
	}{
		{trials()[2], EtcdCluster},
		{trials()[3], EtcdCurrentCluster},
		{trials()[4], ZooKeeperCluster},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			members := k.start(t, 3)
			require.Len(t, members, 3)
			require.NoError(t, k.write(t.Context(), t, members[0], "one"))

			members[0].Kill(t)
			require.Eventually(t, func() bool {
				return k.write(short(t), t, members[1], "two") == nil
			}, readyBound, 1, "two of three are enough")
			members[0].Restart(t, true)
			members[1].Freeze(t)
			require.Eventually(t, func() bool {
				got, err := k.read(short(t), t, members[0])
				return err == nil && got == "two"
			}, readyBound, 1, "the member is back and knows what it missed")
			members[1].Resume(t)
			// If it led the others when it was stopped, it has to join the new leader first.
			require.Eventually(t, func() bool {
				return k.write(short(t), t, members[1], "three") == nil
			}, readyBound, 1, "the member that stood still serves again")
		})
	}
}

func TestEtcdMemberKeepsItsData(t *testing.T) {
	t.Parallel()
	members := EtcdCluster(t, 2)
	require.Contains(t, attempt(func(tb TB) { members[0].Restart(tb, false) }).failed, "without its data")
}

// BenchmarkClusterStart measures how long a test waits for three members.
func BenchmarkClusterStart(b *testing.B) {
	for name, start := range map[string]func(TB, int, ...Option) []*Server{
		"Etcd": EtcdCluster, "EtcdCurrent": EtcdCurrentCluster, "ZooKeeper": ZooKeeperCluster,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				for _, s := range start(b, 3) {
					s.Kill(b)
				}
			}
		})
	}
}
