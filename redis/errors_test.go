package redislock

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/redis/internal/redistest"
	"github.com/mortiselock/lock/redis/internal/wire"
)

func TestForeignDataIsNamedAndLeftAlone(t *testing.T) {
	t.Parallel()
	b, c := shared(t)
	for name, put := range map[string]func(record string) error{
		"string": func(k string) error { return c.Set(t.Context(), k, "somebody else's", 0).Err() },
		"empty":  func(k string) error { return c.Set(t.Context(), k, "", 0).Err() },
		"nearly": func(k string) error {
			return c.Set(t.Context(), k, "M2|00000000000000000000000000000000:1+1|1|1|-|{}", 0).Err()
		},
		"list": func(k string) error { return c.RPush(t.Context(), k, "x").Err() },
		"hash": func(k string) error { return c.HSet(t.Context(), k, "a", "b").Err() },
	} {
		t.Run(name, func(t *testing.T) {
			key := backendtest.UniqueKey(t)
			record := namesOf(defaultPrefix, key).record()
			require.NoError(t, put(record))
			before := c.Dump(t.Context(), record).Val()
			hold := backend.HoldOf(redistest.Request(key))
			_, tryErr := b.Try(t.Context(), redistest.Request(key))
			_, renewErr := b.Renew(t.Context(), hold)
			_, inspectErr := b.Inspect(t.Context(), key)
			batchErr := b.RenewBatch(t.Context(), []backend.Hold{hold})[0].Err
			for _, err := range []error{tryErr, renewErr, inspectErr, batchErr, b.Release(t.Context(), hold), b.ForceRelease(t.Context(), key, 1)} {
				require.ErrorIs(t, err, backend.ErrPermanent)
				require.ErrorContains(t, err, key)
				require.NotErrorIs(t, err, backend.ErrHeld)
				require.NotErrorIs(t, err, backend.ErrNotHeld)
			}
			require.Equal(t, before, c.Dump(t.Context(), record).Val())
		})
	}
}

func TestScriptsForgottenByTheServer(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.Redis(t))
	b := backendOn(t, c)
	flush := func() { require.NoError(t, c.ScriptFlush(t.Context()).Err()) }
	key := backendtest.UniqueKey(t)
	flush()
	hold, g := backendtest.Granted(t, b, redistest.Request(key))
	flush()
	_, err := b.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrHeld)
	flush()
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	flush()
	rec, err := b.Inspect(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, g.Token, rec.Token)
	flush()
	require.NoError(t, b.RenewBatch(t.Context(), []backend.Hold{hold})[0].Err)
	flush()
	require.ErrorIs(t, b.ForceRelease(t.Context(), key, 1), backend.ErrNotHeld)
	flush()
	require.NoError(t, b.Release(t.Context(), hold))
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithPassword("right-secret"))
	for name, password := range map[string]string{"wrong": "wrong-secret", "none": ""} {
		c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Password: password})
		_, err := NewBackend(t.Context(), c, nil)
		require.ErrorIs(t, err, backend.ErrPermanent, name)
		require.NotContains(t, err.Error(), "secret")
		require.NoError(t, c.Close())
	}
	// The password is changed under an open backend.
	c := redistest.Client(t, server)
	b := backendOn(t, c)
	backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	require.NoError(t, c.ConfigSet(t.Context(), "requirepass", "another-secret").Err())
	killConnections(t, goredis.NewClient(&goredis.Options{Addr: server.Addr(), Password: "another-secret"}), "normal")
	backendtest.Eventually(t, "the new password is asked for", func() bool {
		_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
		return errors.Is(err, backend.ErrPermanent) && !errors.Is(err, backend.ErrUnavailable)
	})
}

// killConnections ends every other connection of a kind, through a client that
// it closes.
func killConnections(t *testing.T, c *goredis.Client, kind string) {
	t.Helper()
	require.NoError(t, c.ClientKillByFilter(t.Context(), "TYPE", kind, "SKIPME", "yes").Err())
	require.NoError(t, c.Close())
}

// documentedRules are those that the documentation gives for a user of its own.
func documentedRules(t *testing.T) (rules []any) {
	t.Helper()
	page, err := os.ReadFile("../docs/backends/redis.md")
	require.NoError(t, err)
	_, line, ok := strings.Cut(string(page), "ACL SETUSER locks on >PASSWORD ")
	require.True(t, ok)
	line, _, _ = strings.Cut(line, "\n")
	for _, rule := range strings.Fields(line) {
		rules = append(rules, rule)
	}
	return rules
}

func TestMissingPermission(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := redistest.Client(t, server)
	user := func(name string, rules ...any) *redisBackend {
		args := append([]any{"acl", "setuser", name, "on", ">pass"}, rules...)
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Username: name, Password: "pass"})
		t.Cleanup(func() { _ = c.Close() })
		return backendOn(t, c)
	}
	key := backendtest.UniqueKey(t)

	t.Log("the rules of the documentation suffice")
	b := user("documented", documentedRules(t)...)
	w, err := b.Watch(t.Context(), key)
	require.NoError(t, err)
	hold, _ := backendtest.Granted(t, b, ownedRequest(key, "a", ttl))
	hold2, _ := backendtest.Granted(t, b, ownedRequest(key, "a", ttl))
	var listed []string
	require.NoError(t, b.List(t.Context(), key, func(r backend.Record) bool {
		listed = append(listed, r.Key)
		return true
	}))
	require.Equal(t, []string{key}, listed)
	_, err = b.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrHeld)
	_, err = b.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, b.Release(t.Context(), hold2))
	require.NoError(t, b.Release(t.Context(), hold))
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrNotHeld)
	signalled(t, w)

	t.Log("other keys are refused")
	b = user("elsewhere", "~other:*", "&lock:*", "+@all")
	_, err = b.Try(t.Context(), redistest.Request(key))
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "NOPERM")

	t.Log("without channels a release works, and a watch says why it does not")
	b = user("mute", "~lock:*", "resetchannels", "+@all")
	hold, _ = backendtest.Granted(t, b, redistest.Request(key))
	require.NoError(t, b.Release(t.Context(), hold))
	require.Zero(t, admin.Exists(t.Context(), namesOf(defaultPrefix, key).record()).Val())
	_, err = b.Watch(t.Context(), key)
	require.ErrorIs(t, err, backend.ErrPermanent)
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl())
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), DialerRetries: 1})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	server.Kill(t)
	backendtest.Eventually(t, "the connection is refused", func() bool {
		_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
		require.Error(t, err)
		return errors.Is(err, backend.ErrUnavailable)
	})
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrUnavailable)
	require.ErrorIs(t, b.RenewBatch(t.Context(), []backend.Hold{hold})[0].Err, backend.ErrUnavailable)
	_, err := b.Watch(t.Context(), hold.Key)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	_, err = NewBackend(t.Context(), c, nil)
	require.ErrorIs(t, err, backend.ErrUnavailable)
	server.Restart(t, false)
	backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
}

func TestContexts(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl())
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	key := backendtest.UniqueKey(t)
	hold, _ := backendtest.Granted(t, b, redistest.Request(key))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before := c.Info(t.Context(), "commandstats").Val()
	_, tryErr := b.Try(ended, redistest.Request(key))
	_, renewErr := b.Renew(ended, hold)
	_, watchErr := b.Watch(ended, key)
	_, openErr := NewBackend(ended, c, nil)
	for _, err := range []error{tryErr, renewErr, watchErr, openErr, b.Release(ended, hold), b.RenewBatch(ended, []backend.Hold{hold})[0].Err} {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Equal(t, wire.InfoFields(before)["cmdstat_evalsha"], wire.InfoFields(c.Info(t.Context(), "commandstats").Val())["cmdstat_evalsha"], "nothing was sent")

	server.Freeze(t)
	for _, do := range []func(context.Context) error{
		func(ctx context.Context) error {
			_, err := b.Try(ctx, redistest.Request(backendtest.UniqueKey(t)))
			return err
		},
		func(ctx context.Context) error { _, err := b.Renew(ctx, hold); return err },
		func(ctx context.Context) error { return b.RenewBatch(ctx, []backend.Hold{hold})[0].Err },
		func(ctx context.Context) error { return b.Release(ctx, hold) },
		func(ctx context.Context) error { _, err := b.Watch(ctx, backendtest.UniqueKey(t)); return err },
	} {
		err := do(backendtest.Short(t, 100*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, backend.ErrPermanent)
		require.NotErrorIs(t, err, backend.ErrHeld)
		require.NotErrorIs(t, err, backend.ErrNotHeld)
	}
	server.Resume(t)
}

// A request whose reply does not come is unknown, not "unavailable".
func TestTimeoutIsUnknown(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, servertest.WithControl())
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ReadTimeout: time.Second})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	req := redistest.Request(backendtest.UniqueKey(t))
	backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	server.Freeze(t)
	_, err := b.Try(t.Context(), req)
	require.Error(t, err)
	for _, sentinel := range []error{backend.ErrUnavailable, backend.ErrPermanent, backend.ErrHeld, backend.ErrNotHeld, backend.ErrInvalid, backend.ErrUnsupported} {
		require.NotErrorIs(t, err, sentinel)
	}
	server.Resume(t)
	backendtest.Eventually(t, "it was applied after all", func() bool {
		rec, err := b.Inspect(t.Context(), req.Key)
		return err == nil && rec.Holds == 1
	})
	require.NoError(t, b.Release(t.Context(), backend.HoldOf(req)))
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	c := redistest.Client(t, servertest.SharedRedis(t))
	b := backendOn(t, c)
	hold, _ := backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
	require.NoError(t, c.Close())
	_, err := b.Renew(t.Context(), hold)
	require.ErrorIs(t, err, backend.ErrPermanent)
	require.ErrorContains(t, err, "closed")
	require.ErrorIs(t, b.Release(t.Context(), hold), backend.ErrPermanent)
	_, err = b.Watch(t.Context(), hold.Key)
	require.ErrorIs(t, err, backend.ErrPermanent)
}

func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	server := servertest.SharedRedis(t)
	c := goredis.NewClient(&goredis.Options{Addr: server.Addr(), PoolSize: 1, MaxActiveConns: 1, PoolTimeout: 50 * time.Millisecond})
	t.Cleanup(func() { _ = c.Close() })
	b := backendOn(t, c)
	conn := c.Conn()
	require.NoError(t, conn.Ping(t.Context()).Err())
	_, err := b.Try(t.Context(), redistest.Request(backendtest.UniqueKey(t)))
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.ErrorContains(t, err, "pool")
	require.NoError(t, conn.Close())
	backendtest.Granted(t, b, redistest.Request(backendtest.UniqueKey(t)))
}

func TestCodesOfServers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		"READONLY You can't write against a read only replica.":                                backend.ErrUnavailable,
		"BUSY Redis is busy running a script.":                                                 backend.ErrUnavailable,
		"LOADING Redis is loading the dataset in memory":                                       backend.ErrUnavailable,
		"MISCONF Redis is configured to save RDB snapshots":                                    backend.ErrUnavailable,
		"CLUSTERDOWN The cluster is down":                                                      backend.ErrUnavailable,
		"TRYAGAIN Multiple keys request during rehashing of slot":                              backend.ErrUnavailable,
		"MASTERDOWN Link with MASTER is down":                                                  backend.ErrUnavailable,
		"ERR max number of clients reached":                                                    backend.ErrUnavailable,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                    backend.ErrPermanent,
		"NOAUTH Authentication required.":                                                      backend.ErrPermanent,
		"MOVED 3999 127.0.0.1:6381":                                                            backend.ErrPermanent,
		"ERR unknown command 'EVALSHA', with args beginning with: 'id' ":                       backend.ErrPermanent,
		"ERR DB index is out of range":                                                         backend.ErrPermanent,
		"ERR something new":                                                                    nil,
		"ERR Error running script (call to f_ab): @user_script:3: WRONGTYPE Operation against": backend.ErrPermanent,
		"ERR Error running script (call to f_ab): @user_script: 3: -READONLY You can't write":  backend.ErrUnavailable,
		"ERR Error running script (call to f_ab): @user_script: 3: attempt to index":           nil,
	} {
		err := keyError(t.Context(), namesOf("lock:", "k"), serverError(text), false)
		for _, sentinel := range []error{backend.ErrUnavailable, backend.ErrPermanent} {
			require.Equal(t, sentinel == want, errors.Is(err, sentinel), text)
		}
		require.NotContains(t, err.Error(), "'id'")
		require.ErrorContains(t, err, text[:12])
		// After a lost reply nothing is certain.
		err = keyError(t.Context(), namesOf("lock:", "k"), serverError(text), true)
		require.NotErrorIs(t, err, backend.ErrUnavailable, text)
		require.NotErrorIs(t, err, backend.ErrPermanent, text)
	}
}

type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}
