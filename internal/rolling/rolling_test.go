package rolling

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// stores are the forms of stores that services move between.
var stores = map[string]func(t *testing.T) string{
	"row":       func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=row" },
	"redlock":   redlockURL,
	"file":      func(t *testing.T) string { return "file:" + servertest.TempDir(t) },
	"redis":     func(t *testing.T) string { return servertest.SharedRedis(t).URL() },
	"mysql":     func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() },
	"etcd":      func(t *testing.T) string { return servertest.SharedEtcd(t).URL() },
	"zookeeper": func(t *testing.T) string { return servertest.SharedZooKeeper(t).URL() },
}

// redlockURL is that of three nodes, which are said to be new.
func redlockURL(t *testing.T) string {
	t.Helper()
	var nodes []string
	for range 3 {
		nodes = append(nodes, servertest.Redis(t).Addr())
	}
	return "redlock://" + strings.Join(nodes, ",") + "?new_nodes=true"
}

func changeOf(t *testing.T, old, next string) change {
	return change{Old: stores[old](t), New: stores[next](t), Key: t.Name() + "/" + backend.NewID().Hex()[:8]}
}

// moves are those, or where there is time those between all pairs of stores.
func moves(few [][2]string) [][2]string {
	if os.Getenv("LOCK_TEST_LONG") == "" {
		return few
	}
	var all [][2]string
	for old := range stores {
		for next := range stores {
			if old != next {
				all = append(all, [2]string{old, next})
			}
		}
	}
	return all
}

// TestTwoURLsOfOneStore: who names one store twice is told so, and does not wait for himself.
func TestTwoURLsOfOneStore(t *testing.T) {
	t.Parallel()
	for name, url := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			p, err := openBoth(t.Context(), url, url, nil)
			require.NoError(t, err)
			defer p.Close()
			_, err = p.Acquire(t.Context(), backend.NewID().Hex())
			require.ErrorIs(t, err, lock.ErrInvalid)
		})
	}
}

// TestRollingChange moves a service between two stores in three steps: at no time has the
// key two holders, and its tokens rise all the way. The control changes the URL at once,
// and has two holders.
func TestRollingChange(t *testing.T) {
	for _, m := range moves([][2]string{{"file", "redis"}, {"redis", "mysql"}, {"redis", "etcd"}, {"etcd", "redis"}, {"zookeeper", "mysql"}, {"mysql", "zookeeper"}}) {
		t.Run(m[0]+" to "+m[1], func(t *testing.T) {
			t.Parallel()
			f := fleet{t: t, journal: &journal{}}
			f.threads(changeOf(t, m[0], m[1]))
			f.roll(3, false, stepOld, stepBoth, stepNew)
			overlaps, falls, evidence := f.journal.judge()
			t.Logf("%d holds", f.journal.len())
			require.Zero(t, overlaps, evidence)
			require.Zero(t, falls, evidence)
		})
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		f := fleet{t: t, journal: &journal{}}
		f.threads(changeOf(t, "file", "redis"))
		f.rollUntilWrong(3, false)
	})
}
