package foreign

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-co-op/gocron/v2"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/memory"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(log.New(io.Discard, "", 0)) // it tells of the connections that a test kills
	os.Exit(servertest.Main(m))
}

// service is a copy that uses a library alone, as its page says.
type service struct {
	// take takes the key with one try, and returns what releases it.
	take func(key string) (release func() error, err error)
	// remove ends a hold behind the back of its holder.
	remove func(t *testing.T, key string)
	ours   *Locker
}

const ttl = 2 * time.Second

var services = map[string]func(t *testing.T) service{
	"redislock": func(t *testing.T) service {
		rdb := redisClient(t)
		client := redislock.New(rdb)
		return service{
			take: func(key string) (func() error, error) {
				l, err := client.Obtain(t.Context(), serviceName(key), ttl, nil)
				return func() error { return l.Release(t.Context()) }, err
			},
			remove: removeFrom(rdb, serviceName),
			ours:   Redislock(client, serviceName, ttl),
		}
	},
	"redsync": func(t *testing.T) service {
		rdb := redisClient(t)
		return redsyncService(t, rdb, serviceName)
	},
	"rueidislock": func(t *testing.T) service {
		open := func() rueidislock.Locker {
			l, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption: rueidis.ClientOption{InitAddress: []string{servertest.SharedRedis(t).Addr()}},
				KeyMajority:  1, NoLoopTracking: true, KeyValidity: ttl, TryNextAfter: ttl, // the machine may be slow
			})
			require.NoError(t, err)
			t.Cleanup(l.Close)
			return l
		}
		theirs := open()
		return service{
			take: func(key string) (func() error, error) {
				_, cancel, err := theirs.TryWithContext(t.Context(), serviceName(key))
				return func() error { cancel(); return nil }, err
			},
			remove: removeFrom(redisClient(t), func(key string) string { return "rueidislock:0:" + serviceName(key) }),
			ours:   Rueidislock(open(), serviceName, ttl),
		}
	},
	"etcd": func(t *testing.T) service {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{servertest.SharedEtcd(t).Addr()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		return service{
			take: func(key string) (func() error, error) {
				s, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl.Seconds())))
				require.NoError(t, err)
				m := concurrency.NewMutex(s, serviceName(key))
				return s.Close, m.TryLock(t.Context())
			},
			remove: func(t *testing.T, key string) {
				gone, err := client.Delete(t.Context(), serviceName(key)+"/", clientv3.WithPrefix())
				require.NoError(t, err)
				require.EqualValues(t, 1, gone.Deleted)
			},
			ours: Etcd(client, serviceName, ttl),
		}
	},
	"GET_LOCK, MySQL":   func(t *testing.T) service { return getLockService(t, servertest.SharedMySQL(t)) },
	"GET_LOCK, MariaDB": func(t *testing.T) service { return getLockService(t, servertest.SharedMariaDB(t)) },
}

func redisClient(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: servertest.SharedRedis(t).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func removeFrom(rdb *redis.Client, name func(string) string) func(t *testing.T, key string) {
	return func(t *testing.T, key string) {
		gone, err := rdb.Del(t.Context(), name(key)).Result()
		require.NoError(t, err)
		require.EqualValues(t, 1, gone)
	}
}

func redsyncService(t *testing.T, rdb *redis.Client, name func(string) string) service {
	rs := redsync.New(redsyncredis.NewPool(rdb))
	return service{
		take: func(key string) (func() error, error) {
			m := rs.NewMutex(name(key), redsync.WithExpiry(ttl))
			return func() error { _, err := m.UnlockContext(t.Context()); return err }, m.TryLockContext(t.Context())
		},
		remove: removeFrom(rdb, name),
		ours:   Redsync(rs, name, ttl),
	}
}

func getLockService(t *testing.T, server *servertest.Server) service {
	open := func() *sql.DB {
		db, err := sql.Open("mysql", servertest.MySQLDSN(server))
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db := open()
	return service{
		take: func(key string) (func() error, error) {
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			var got int
			require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT GET_LOCK(?, 0)", serviceName(key)).Scan(&got))
			if got != 1 {
				return nil, lock.ErrHeld
			}
			return func() error {
				_, err := conn.ExecContext(t.Context(), "DO RELEASE_LOCK(?)", serviceName(key))
				_ = conn.Close()
				return err
			}, nil
		},
		remove: func(t *testing.T, key string) {
			var id int64
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT IS_USED_LOCK(?)", serviceName(key)).Scan(&id))
			_, err := db.ExecContext(t.Context(), fmt.Sprintf("KILL %d", id))
			require.NoError(t, err)
		},
		ours: GetLock(open(), serviceName, ttl),
	}
}

// TestForeign: a copy that holds both excludes one that holds theirs alone, in both
// directions, and the loss of theirs ends the lease and the hold of ours.
func TestForeign(t *testing.T) {
	for name, open := range services {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			store := &memlock.Options{Store: memlock.NewStore(nil)}
			alone, err := memlock.New(t.Context(), store)
			require.NoError(t, err)
			defer alone.Close()
			next, err := memlock.New(t.Context(), store)
			require.NoError(t, err)
			both, err := lock.Both(s.ours, next)
			require.NoError(t, err)
			defer both.Close()
			key := fmt.Sprintf("key %d", rand.Uint64())

			release, err := s.take(key)
			require.NoError(t, err)
			_, err = both.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, lock.ErrHeld)
			acquired := make(chan lock.Lease)
			go func() {
				l, err := both.Acquire(t.Context(), key)
				assert.NoError(t, err)
				acquired <- l
			}()
			require.NoError(t, release())
			lease := <-acquired
			require.NotNil(t, lease)

			_, err = s.take(key)
			require.Error(t, err, "theirs alone has got what both hold")
			_, err = alone.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, lock.ErrHeld)
			require.NoError(t, lease.Release(t.Context()))
			release, err = s.take(key)
			require.NoError(t, err, "theirs is not released")
			require.NoError(t, release())

			lease, err = both.Acquire(t.Context(), key)
			require.NoError(t, err)
			select {
			case <-lease.Context().Done():
				t.Fatal(context.Cause(lease.Context()))
			case <-time.After(2 * ttl):
			}
			_, err = s.take(key)
			require.Error(t, err, "theirs is not renewed")
			s.remove(t, key)
			select {
			case <-lease.Context().Done():
			case <-time.After(ttl):
				t.Fatal("nothing was said of the loss")
			}
			require.ErrorIs(t, context.Cause(lease.Context()), lock.ErrLost)
			require.NotErrorIs(t, context.Cause(lease.Context()), lock.ErrExpired, "the deadline has come before the news")
			require.ErrorIs(t, lease.Release(t.Context()), lock.ErrNotHeld)
			lease, err = alone.Acquire(t.Context(), key)
			require.NoError(t, err, "ours is still held")
			require.NoError(t, lease.Release(t.Context()))
		})
	}
}

// TestGocron: a scheduler of step 2 skips a job that one of step 1 is at. That one uses
// gocron-redis-lock, which locks the name of the job with redsync.
func TestGocron(t *testing.T) {
	t.Parallel()
	job := fmt.Sprintf("job %d", rand.Uint64())
	s := redsyncService(t, redisClient(t), func(name string) string { return name })
	next, err := memlock.New(t.Context(), nil)
	require.NoError(t, err)
	both, err := lock.Both(s.ours, next)
	require.NoError(t, err)
	defer both.Close()
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(Gocron{both}))
	require.NoError(t, err)
	defer func() { assert.NoError(t, scheduler.Shutdown()) }()
	skipped, ran := make(chan error, 1), make(chan error, 1)
	added, err := scheduler.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func() {
		_, err := s.take(job)
		ran <- err
	}), gocron.WithName(job), gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { skipped <- err })))
	require.NoError(t, err)
	scheduler.Start()

	release, err := s.take(job)
	require.NoError(t, err)
	require.NoError(t, added.RunNow())
	select {
	case err := <-skipped:
		require.ErrorIs(t, err, lock.ErrHeld)
	case <-ran:
		t.Fatal("the job ran beside one of step 1")
	}
	require.NoError(t, release())
	require.NoError(t, added.RunNow())
	select {
	case err := <-ran:
		require.Error(t, err, "theirs alone has got what the job holds")
	case err := <-skipped:
		t.Fatal(err)
	}
}

// TestAdaptersAreShort: they are to be copied.
func TestAdaptersAreShort(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	adapters := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, code, ok := strings.Cut(string(text), "\n)\n") // after the imports
		require.True(t, ok)
		if strings.HasSuffix(file, "_test.go") || file == "foreign.go" {
			continue
		}
		adapters++
		assert.LessOrEqual(t, strings.Count(strings.TrimSpace(code), "\n")+1, 40, "lines of %s", file)
	}
	assert.Equal(t, 6, adapters)
}
