package row

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// An operator's client that is cut off in the middle of what it does to a key, without
// the server being told of its end, keeps the key from nobody.
func TestRowOperatorCutOff(t *testing.T) {
	force := func(ctx context.Context, b *Backend, h backend.Hold) error {
		return b.ForceRelease(ctx, h.Key, h.Token)
	}
	revoke := func(ctx context.Context, b *Backend, h backend.Hold) error { return b.Revoke(ctx, h.Key, h.Token) }
	forget := func(ctx context.Context, b *Backend, h backend.Hold) error { return b.Forget(ctx, h.Key) }
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		type cutOff struct {
			do   func(ctx context.Context, b *Backend, h backend.Hold) error
			at   string // the statement whose answer does not come
			free bool   // nobody holds the key
		}
		mysqltest.Together(t, map[string]cutOff{
			"force, at the record": {force, "session = ''", false},
			"force, at the row":    {force, " NOWAIT", false},
			"force, at the mark":   {force, "SET revoked", false},
			"force, at the look":   {force, "SELECT IS_USED_LOCK", false},
			"force, at the end":    {force, "KILL CONNECTION", false},
			"force, at the wait":   {force, "SELECT GET_LOCK", false},
			"force, at the commit": {force, "COMMIT", false},
			"revoke, at the mark":  {revoke, "SET revoked", false},
			"forget, at the row":   {forget, "FOR UPDATE NOWAIT", true},
			"forget, half deleted": {forget, "DELETE FROM", true},
		}, func(t *testing.T, c cutOff) {
			p, through := mysqltest.BehindProxy(t, s)
			operator, err := New(t.Context(), cuttableConnector(t, s, through), Options{})
			require.NoError(t, err)
			b, other := backendOn(t, s, Options{}), backendOn(t, s, Options{})
			hold, _ := backendtest.Granted(t, b, mysqltest.Request(backendtest.UniqueKey(t)))
			if c.free {
				require.NoError(t, b.Release(t.Context(), hold))
			}
			p.StallReplies(1, c.at)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.do(ctx, operator, hold) }()
			backendtest.Eventually(t, "its answer is held back", func() bool { return p.Lost() == 1 })
			p.Freeze() // nor does the end of its connection reach the server
			cancel()
			require.Error(t, <-done)
			_ = b.Release(t.Context(), hold)
			backendtest.Eventually(t, "nobody holds the key", func() bool {
				req := mysqltest.Request(hold.Key)
				_, err := other.Try(t.Context(), req)
				return err == nil && other.Release(t.Context(), backend.HoldOf(req)) == nil
			})
			p.Resume()
			p.Cut()
			require.NoError(t, operator.Close())
		})
	})
}
