//go:build unix

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

// TestMain is also the copies that the tests start.
func TestMain(m *testing.M) {
	if os.Getenv(copyEnv) != "" {
		main()
	}
	os.Exit(servertest.Main(m))
}

var lockURLs = map[string]func(t *testing.T) string{
	"file":  func(*testing.T) string { return "" },
	"redis": func(t *testing.T) string { return servertest.SharedRedis(t).URL() },
	"table": func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=table" },
	"row":   func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=row" },
	"etcd":  func(t *testing.T) string { return servertest.SharedEtcd(t).URL() },
	"zk":    func(t *testing.T) string { return servertest.SharedZooKeeper(t).URL() },
}

func TestPausedHolder(t *testing.T) {
	t.Parallel()
	for name, lockURL := range lockURLs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := ""
			if name == "table" || name == "row" {
				dsn = servertest.MySQLDSN(servertest.SharedMariaDB(t))
			}
			var out strings.Builder
			_, err := run(t.Context(), lockURL(t), dsn, 2*time.Second, &out)
			require.NoError(t, err)
			assert.Equal(t, `| way | postings | the run's record | the late copy |
|---|--:|---|---|
| lock alone | 2 | 1 paid, by the first copy | has paid |
| and an idempotency key | 1 | 0 paid, by the first copy | refused: posted before |
| and the token | 1 | 1 paid, by the second copy | refused: comes too late |
`, out.String())
		})
	}
}

// It is the pause that makes the lock alone too little: without it the second copy waits,
// and finds the bonus paid.
func TestWithoutThePauseALockIsEnough(t *testing.T) {
	t.Parallel()
	o, err := scene{way: ways[0], lockURL: "file:" + t.TempDir(), ledger: newPlace(t.TempDir(), ""), ttl: 30 * time.Second}.play(t.Context())
	require.NoError(t, err)
	assert.Equal(t, outcome{Paid: 1, Record: record{Paid: 1, By: "first"}, late: "has paid"}, o)
}
