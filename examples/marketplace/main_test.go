package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

// runUntil gives each way longer until all is well, on a machine that is slow. run audits
// the market after each way: an item that is sold twice is an error.
func runUntil(t *testing.T, redisURL, lockURL string, c crowd, length time.Duration, well func(bought map[string]int) bool) {
	t.Helper()
	for ; ; length *= 2 {
		var out strings.Builder
		results, err := run(t.Context(), redisURL, lockURL, []crowd{c}, length, true, &out)
		require.NoError(t, err)
		require.Len(t, results, len(ways))
		bought := map[string]int{}
		for _, r := range results {
			bought[r.way] = r.bought
		}
		t.Log("\n" + out.String())
		if well(bought) {
			return
		}
		require.Less(t, length, 8*time.Second, "not even then")
	}
}

// offering does something when somebody has looked at an offer.
type offering struct{ looked func() }

func (o offering) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (o offering) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		o.see(cmd)
		return err
	}
}

func (o offering) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		o.see(cmds[0])
		return err
	}
}

func (o offering) see(cmd goredis.Cmder) {
	if cmd.Name() == "zscore" {
		o.looked()
	}
}

// An offer that is made during a purchase costs who watches the market a retry, and nobody
// who has a lock.
func TestAnOfferSpoilsThePurchasesOfWATCH(t *testing.T) {
	t.Parallel()
	url := servertest.SharedRedis(t).URL()
	opts, err := goredis.ParseURL(url)
	require.NoError(t, err)
	redis := goredis.NewClient(opts)
	t.Cleanup(func() { _ = redis.Close() })
	for _, w := range ways {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/together=%v", w.name, together), func(t *testing.T) {
				ctx, users := t.Context(), []string{"seller", "ann"}
				m := market{redis: redis, prefix: "{spoiled-" + rand.Text() + "}", together: together}
				defer func() { require.NoError(t, m.clear(ctx, users)) }()
				for _, user := range users {
					require.NoError(t, redis.Set(ctx, m.purse(user), 10, 0).Err())
				}
				require.NoError(t, redis.SAdd(ctx, m.inventory("seller"), "seller.0", "seller.1").Err())
				require.NoError(t, m.list(ctx, "seller", "seller.0", 7))

				observed, offers := goredis.NewClient(opts), 0
				defer observed.Close()
				observed.AddHook(offering{func() {
					if offers++; offers == 1 {
						assert.NoError(t, m.list(ctx, "seller", "seller.1", 7))
					}
				}})
				buy, leave, err := w.open(ctx, market{redis: observed, prefix: m.prefix, together: together}, url, "ann")
				require.NoError(t, err)
				defer leave()
				o := offer{"seller.0", 7}
				err = buy(ctx, o)
				require.Equal(t, 1, offers)
				if w.name == "WATCH" {
					require.ErrorIs(t, err, errGone)
					err = buy(ctx, o)
				}
				require.NoError(t, err)
				require.NoError(t, m.audit(ctx, users, 20, 2))
				require.ErrorIs(t, buy(ctx, o), errGone, "it is ann's")
			})
		}
	}
}

func TestCrowds(t *testing.T) {
	t.Parallel()
	got, err := parseCrowds("1x1,20x5")
	require.NoError(t, err)
	assert.Equal(t, []crowd{{1, 1}, {20, 5}}, got)
	for _, bad := range []string{"", "5", "5x", "0x1", "5x5,"} {
		_, err := parseCrowds(bad)
		require.ErrorContains(t, err, "write sellers x buyers", bad)
	}
	_, err = run(t.Context(), "", "", got, time.Second, false, &strings.Builder{})
	require.ErrorContains(t, err, "make marketplace")
}

func TestEachLockBuys(t *testing.T) {
	t.Parallel()
	for name, lockURL := range map[string]func(t *testing.T) string{
		"same":  func(*testing.T) string { return "" }, // Redis, as the market
		"file":  func(t *testing.T) string { return "file:" + t.TempDir() },
		"table": func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=table" },
		"row":   func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=row" },
		"etcd":  func(t *testing.T) string { return servertest.SharedEtcd(t).URL() },
		"zk":    func(t *testing.T) string { return servertest.SharedZooKeeper(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runUntil(t, servertest.SharedRedis(t).URL(), lockURL(t), crowd{2, 2}, 300*time.Millisecond, func(bought map[string]int) bool {
				return bought["simple lock, market"] > 0 && bought["Mortise, market"] > 0 && bought["Mortise, one item"] > 0
			})
		})
	}
}

// Two buyers who see the same item and both take it: the audit says so.
func TestAuditSeesAnItemThatIsSoldTwice(t *testing.T) {
	t.Parallel()
	opts, err := goredis.ParseURL(servertest.SharedRedis(t).URL())
	require.NoError(t, err)
	redis := goredis.NewClient(opts)
	defer redis.Close()
	ctx, m, users := t.Context(), market{redis: redis, prefix: "{audit}"}, []string{"seller", "ann", "bob"}
	defer func() { require.NoError(t, m.clear(ctx, users)) }()
	for _, user := range users {
		require.NoError(t, redis.Set(ctx, m.purse(user), 10, 0).Err())
	}
	require.NoError(t, redis.SAdd(ctx, m.inventory("seller"), "seller.0").Err())
	require.ErrorContains(t, m.list(ctx, "seller", "seller.1", 7), "does not have")
	require.NoError(t, m.list(ctx, "seller", "seller.0", 7))
	require.NoError(t, m.audit(ctx, users, 30, 1))
	require.ErrorContains(t, m.audit(ctx, users, 31, 1), "money")
	require.ErrorContains(t, m.audit(ctx, users, 30, 2), "there are 1 items")

	ann, err := m.pick(ctx)
	require.NoError(t, err)
	bob, err := m.pick(ctx)
	require.NoError(t, err)
	require.Equal(t, offer{"seller.0", 7}, ann)
	require.NoError(t, m.check(ctx, redis, "bob", bob))
	require.NoError(t, m.buy(ctx, redis, "ann", ann))
	require.NoError(t, m.audit(ctx, users, 30, 1))
	require.ErrorIs(t, m.check(ctx, redis, "bob", bob), errGone)
	require.NoError(t, m.trade(ctx, redis, "bob", bob), "he has checked before")
	require.ErrorContains(t, m.audit(ctx, users, 30, 1), "1 items are in two places")
}
