package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

func think() { time.Sleep(time.Millisecond) }

var short = sale{stock: 20, buyers: 100, atOnce: 16, think: think}

func TestEachPieceIsSoldOnce(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]func(servertest.TB) *servertest.Server{
		"MariaDB": servertest.SharedMariaDB, "MySQL": servertest.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := servers{
				lock: "file:" + t.TempDir(), mysql: servertest.MySQLDSN(shared(t)), redis: servertest.SharedRedis(t).URL(),
				name: fmt.Sprintf("sale_%s_%d", name, os.Getpid()),
			}
			var out strings.Builder
			results, err := run(t.Context(), at, short, &out)
			require.NoError(t, err)
			t.Log("\n" + out.String())
			require.Len(t, results, len(ways))
			for _, r := range results[1:] {
				assert.Equal(t, short.stock, r.sold, r.way)
				assert.Zero(t, r.oversold, r.way)
			}
			for _, r := range results[2:] {
				assert.GreaterOrEqual(t, r.perPurchase, 1.0, r.way)
			}
		})
	}
}

func TestLockOfEveryBackend(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"mem":   func(*testing.T) string { return "mem:sale" },
		"redis": func(t *testing.T) string { return servertest.SharedRedis(t).URL() },
		"table": func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=table" },
		"row":   func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=row" },
		"etcd":  func(t *testing.T) string { return servertest.SharedEtcd(t).URL() },
		"zk":    func(t *testing.T) string { return servertest.SharedZooKeeper(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			results, err := run(t.Context(), servers{lock: url(t), name: t.Name()}, short, &out)
			if name == "redis" && err == nil {
				assert.GreaterOrEqual(t, results[1].perPurchase, 2.0, "a try and a release, at least")
			}
			require.NoError(t, err)
			require.Len(t, results, 2, "the others have no server")
			assert.Equal(t, "lock", results[1].way)
			assert.Equal(t, short.stock, results[1].sold)
			assert.Zero(t, results[1].oversold)
			assert.Contains(t, out.String(), "| script | left out: no server is named |")
		})
	}
}

// Two who have both read before either writes sell one piece twice, and the sale sees it.
func TestWithoutALockItIsSoldTwice(t *testing.T) {
	t.Parallel()
	var both sync.WaitGroup
	both.Add(2)
	s := sale{stock: 1, buyers: 2, atOnce: 2, think: func() { both.Done(); both.Wait() }}
	r, err := way{control, noLock}.sell(t.Context(), servers{}, s)
	require.NoError(t, err)
	assert.Equal(t, 2, r.sold)
	assert.Equal(t, 1, r.oversold)
}

func TestAnOldTokenIsRefused(t *testing.T) {
	t.Parallel()
	s := &shelf{stock: 3}
	require.NoError(t, s.write(2, 20))
	require.ErrorIs(t, s.write(1, 19), errTooLate)
	assert.Equal(t, 2, s.read())
}

func TestOnePurchaseAUser(t *testing.T) {
	t.Parallel()
	at := servers{redis: servertest.SharedRedis(t).URL(), name: t.Name()}
	c, err := newCounter(t.Context(), at, sale{stock: 2})
	require.NoError(t, err)
	defer c.client.Close()
	defer c.client.Del(t.Context(), c.keys...)
	for i, want := range []struct {
		user int
		sold bool
	}{{1, true}, {1, false}, {2, true}, {3, false}, {1, false}} {
		sold, err := c.buy(t.Context(), want.user)
		require.NoError(t, err)
		assert.Equal(t, want.sold, sold, "purchase %d", i)
	}
}
