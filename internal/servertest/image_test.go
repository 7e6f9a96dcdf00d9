package servertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachImage: what the other tests have as a program comes in a container too, and
// does the same. The engine must have the image, since building one takes minutes.
func TestEachImage(t *testing.T) {
	t.Parallel()
	kindsWithImage := map[string]*kind{"Etcd": etcdKind, "ZooKeeper": zookeeperKind}
	for _, k := range trials() {
		kind := kindsWithImage[k.name]
		if kind == nil {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			f := systemFinder()
			getenv := f.getenv
			f.getenv = func(name string) string {
				if name == "LOCK_TEST_SOURCE" {
					return sourceContainer
				}
				return getenv(name)
			}
			e, err := f.engine()
			if err != nil {
				t.Skipf("no Docker engine: %v", err)
			}
			if !e.has(f.image(kind)) && !e.has(kind.ownImage) {
				t.Skipf("the Docker engine has neither %s nor %s; make images builds one", f.image(kind), kind.ownImage)
			}
			s := private(t, f, kind, []Option{WithControl()})
			require.Zero(t, s.Pid(), "it runs in a container")
			require.NoError(t, k.write(t.Context(), t, s, "kept"))
			s.Freeze(t)
			_, err = k.read(short(t), t, s)
			require.Error(t, err, "it stands still")
			s.Resume(t)
			s.Kill(t)
			s.Restart(t, true)
			got, err := k.read(t.Context(), t, s)
			require.NoError(t, err)
			require.Equal(t, "kept", got)
		})
	}
}
