package redlock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// With a node down, nobody can say of what one of the two others knows whether it is held.
// That keeps nothing from being listed, and is told only if it stays so.
func TestListBesideAKeyThatCannotBeDecided(t *testing.T) {
	t.Parallel()
	servers := nodeSet(t, 3)
	b, err := backend.DefaultMux.Open(t.Context(), urlOf(servers)+"?restart_delay=10m&node_timeout=30s", backend.OpenConfig{TTL: 2 * time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	prefix := "list-" + backend.NewID().Hex()[:8] + "-"
	var nodes []*goredis.Client
	for _, s := range servers {
		nodes = append(nodes, redistest.Client(t, s))
	}
	for _, key := range []string{"a", "c"} {
		hold, grant := backendtest.Granted(t, b, redistest.Brief(prefix+key, 5*time.Minute))
		var renewals int
		var stored string
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s with token %d, after %d renewals:%s", hold.ID.Hex(), grant.Token, renewals, stored)
				for _, n := range b.(majorityWithTokens).nodes {
					n.mu.Lock()
					t.Logf("%s: busy %t since %d, now %d; %d wait, %d failures, the last: %v", n.name, n.busy, n.began, n.clock.Now(), len(n.queue), n.failures, n.failure)
					n.mu.Unlock()
				}
			}
		})
		backendtest.Eventually(t, "every node has the record, and the same token", func() (alike bool) {
			_, err := b.Renew(t.Context(), hold) // tells the token to a node that was asked late
			require.NoError(t, err)
			renewals++
			stored, alike = storedOf(t, nodes, prefix+key)
			return alike
		})
	}
	one := nodes[0]
	var copies []string
	for _, name := range one.Keys(t.Context(), "*"+prefix+"a").Val() {
		to := strings.TrimSuffix(name, "a") + "b"
		require.NoError(t, one.Copy(t.Context(), name, to, 0, false).Err())
		copies = append(copies, to)
	}
	require.NotEmpty(t, copies)
	servers[2].Kill(t)
	list := func(meanwhile func()) (listed []string, err error) {
		err = b.(backend.Lister).List(t.Context(), prefix, func(r backend.Record) bool {
			if listed = append(listed, strings.TrimPrefix(r.Key, prefix)); len(listed) == 2 {
				meanwhile()
			}
			return true
		})
		return listed, err
	}
	listed, err := list(func() {})
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, prefix+"b")
	require.Equal(t, []string{"a", "c"}, listed)
	listed, err = list(func() { require.NoError(t, one.Del(t.Context(), copies...).Err()) })
	require.NoError(t, err)
	require.Equal(t, []string{"a", "c"}, listed)
	for i := range 3 * mostUndecided { // nobody waits for all of them
		for _, to := range copies {
			require.NoError(t, one.Copy(t.Context(), strings.TrimSuffix(to, "b")+"a", fmt.Sprintf("%s%d", to, i), 0, false).Err())
		}
	}
	listed, err = list(func() {})
	require.Equal(t, []string{"a"}, listed)
	require.ErrorIs(t, err, backend.ErrUnavailable)
}

// storedOf is what the nodes store for the key, and whether each has a record, and all have
// the same token.
func storedOf(t *testing.T, nodes []*goredis.Client, key string) (stored string, alike bool) {
	t.Helper()
	tokens := map[string]bool{}
	records := 0
	for i, node := range nodes {
		names := node.Keys(t.Context(), "*"+key)
		stored += fmt.Sprintf("\n%d: %s", i, names)
		for _, name := range names.Val() {
			value := node.Get(t.Context(), name)
			stored += "\n  " + value.String()
			if strings.HasSuffix(name, "k:"+key) {
				records++
			} else {
				tokens[value.Val()] = true
			}
		}
		if len(names.Val()) != 2 {
			tokens[""] = true
		}
	}
	return stored, records == len(nodes) && len(tokens) == 1
}
