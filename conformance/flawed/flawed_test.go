package flawed

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/conformance/flawed/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis tells of each server that it does not reach
	os.Exit(servertest.Main(m))
}

var collection = flawedtest.New("flawed", 16, All(), Healthy())

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func TestFlawed(t *testing.T) { t.Parallel(); collection.CheckFlawed(t, run(t)) }

func TestHealthy(t *testing.T) { t.Parallel(); collection.CheckHealthy(t, run(t)) }

// run reaches a real server for those that are over one, by one client.
func run(t *testing.T) flawedtest.Run {
	var once sync.Once
	var client *goredis.Client
	return flawedtest.Run{
		Server: func(each *testing.T, l Lock) any {
			if l.Over != Redis {
				return nil
			}
			url := servertest.SharedRedis(each).URL()
			once.Do(func() { client = connect(t, url) })
			return client
		},
		Patience: 12 * time.Second,
	}
}

// connect returns a client of a real server. What the broken locks leave there is
// removed at the end.
func connect(t *testing.T, url string) *goredis.Client {
	t.Helper()
	opts, err := goredis.ParseURL(url)
	require.NoError(t, err)
	opts.PoolSize = 200
	client := goredis.NewClient(opts)
	t.Cleanup(func() {
		ctx := context.Background()
		for _, mark := range []string{"flawed:*:", "flawed-token:*:"} {
			keys := client.Scan(ctx, 0, fmt.Sprintf("%sflawed/%d/%s/*", mark, os.Getpid(), t.Name()), 1000).Iterator()
			for keys.Next(ctx) {
				client.Del(ctx, keys.Val())
			}
		}
		assert.NoError(t, client.Close())
	})
	return client
}
