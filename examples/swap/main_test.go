package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// asProgram makes the test binary the program, so that all processes run the same
// binary.
const asProgram = "MORTISE_EXAMPLE_SWAP"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(servertest.Main(m))
}

// urls are the eight backends. Only the URL differs.
var urls = []struct {
	name string
	url  func(t *testing.T) string
}{
	{"memory", func(*testing.T) string { return "mem:" }},
	{"file", func(t *testing.T) string { return "file:" + t.TempDir() }},
	{"redis", func(t *testing.T) string { return servertest.SharedRedis(t).URL() }},
	{"redlock", func(t *testing.T) string {
		var addrs []string
		for range 3 {
			addrs = append(addrs, servertest.Redis(t).Addr())
		}
		return "redlock://" + strings.Join(addrs, ",") + "?new_nodes=true" // the test has just started them
	}},
	{"mysql table", func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=table" }},
	{"mysql row", func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=row" }},
	{"etcd", func(t *testing.T) string { return "etcd://" + servertest.SharedEtcd(t).Addr() + "/swap" }},
	{"zookeeper", func(t *testing.T) string { return "zk://" + servertest.SharedZooKeeper(t).Addr() }},
}

// TestSwap: the same binary does the same work on every backend.
func TestSwap(t *testing.T) {
	t.Parallel()
	for _, b := range urls {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			url := b.url(t)
			copies := 2
			if b.name == "memory" {
				copies = 1 // it excludes within a process only
			}
			dir := t.TempDir()
			config := filepath.Join(dir, "locks.yaml")
			require.NoError(t, os.WriteFile(config, []byte("lockers:\n  jobs:\n    url: ${SWAP_URL}\n    ttl: 4s\n"), 0o600))
			next := filepath.Join(dir, "next")
			const orders = 8
			var (
				wg    sync.WaitGroup
				mu    sync.Mutex
				lines []string
			)
			for i := range copies {
				wg.Go(func() {
					args := []string{"-orders", strconv.Itoa(orders)}
					if i > 0 { // one copy by its environment, the other by a file
						args = append(args, "-config", config)
					}
					cmd := exec.Command(os.Args[0], append(args, next)...)
					cmd.Env = append(os.Environ(), asProgram+"=1", "LOCK_URL="+url, "SWAP_URL="+url)
					var stderr strings.Builder
					cmd.Stderr = &stderr
					out, err := cmd.Output()
					assert.NoError(t, err, stderr.String())
					mu.Lock()
					defer mu.Unlock()
					lines = append(lines, strings.Split(strings.TrimSpace(string(out)), "\n")...)
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
			last, err := os.ReadFile(next)
			require.NoError(t, err)
			assert.Equal(t, strconv.Itoa(copies*orders), string(last), "an order was dispatched twice:\n%s", strings.Join(lines, "\n"))
			tokens := make([]uint64, copies*orders)
			for _, line := range lines {
				var token uint64
				var order int
				_, err := fmt.Sscanf(line, "token %d: order %d", &token, &order)
				require.NoError(t, err, line)
				tokens[order] = token
			}
			for i := 1; i < len(tokens); i++ {
				assert.Greater(t, tokens[i], tokens[i-1], "the token of order %d", i)
			}
		})
	}
}

// TestRefusals: what a backend cannot honour is refused, never ignored.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, b := range urls {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			url := b.url(t)
			separator := "?"
			if strings.Contains(url, "?") {
				separator = "&"
			}
			_, err := lock.Open(t.Context(), url+separator+"no_such_parameter=1", nil)
			require.ErrorIs(t, err, lock.ErrInvalid)

			l, err := lock.Open(t.Context(), url, &lock.Options{TTL: 4 * time.Second})
			require.NoError(t, err)
			defer l.Close()
			g := l.Guarantees()
			for _, ttl := range []time.Duration{time.Nanosecond, g.MinTTL - 1, 4*time.Second + g.TTLGrain/2} {
				if g.CheckTTL(ttl) == nil {
					continue
				}
				_, err := l.TryAcquire(t.Context(), "refused", lock.WithTTL(ttl))
				assert.True(t, isRefusal(err), "TTL %s: %v", ttl, err)
			}
		})
	}
}

func isRefusal(err error) bool {
	return errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrUnsupported)
}
