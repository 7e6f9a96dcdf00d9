// Package mysqltest is what the tests of MySQL share: servers, pools, faults.
package mysqltest

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/internal/servertest"
)

// OnBoth runs a test on a MariaDB and on a MySQL.
func OnBoth(t *testing.T, f func(t *testing.T, s *servertest.Server)) {
	t.Parallel()
	for name, shared := range map[string]func(servertest.TB) *servertest.Server{
		"MariaDB": servertest.SharedMariaDB, "MySQL": servertest.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, shared(t))
		})
	}
}

// OnEach runs a test on a MariaDB and on a MySQL that nobody else uses.
func OnEach(t *testing.T, f func(t *testing.T, s *servertest.Server), opts ...servertest.Option) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB, ...servertest.Option) *servertest.Server{
		"MariaDB": servertest.MariaDB, "MySQL": servertest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, start(t, opts...))
		})
	}
}

// BehindProxy is a proxy before the server, and the change of a configuration that
// leads through it.
func BehindProxy(t testing.TB, s *servertest.Server) (*servertest.TCPProxy, func(*mysql.Config)) {
	t.Helper()
	p := servertest.Proxy(t, s.Addr())
	return p, func(c *mysql.Config) { c.Addr = p.Addr() }
}

// IsMariaDB reports that the server is one.
func IsMariaDB(t testing.TB, s *servertest.Server) bool {
	t.Helper()
	return strings.Contains(s.Version(), "MariaDB")
}

// Together runs the parts of a test at the same time: they wait more than they work, and
// so take one of the places of the -parallel flag together.
func Together[P any](t *testing.T, parts map[string]P, f func(t *testing.T, part P)) {
	t.Helper()
	var all sync.WaitGroup
	for name, part := range parts {
		all.Go(func() { t.Run(name, func(t *testing.T) { f(t, part) }) })
	}
	all.Wait()
}

// Patience is for what must come: only what never comes takes longer on a busy machine.
const Patience = time.Minute

// Storm is how long the tests of many goroutines on new keys last: longer where
// LOCK_TEST_LONG is set, and as long as LOCK_TEST_STORM says.
func Storm() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("LOCK_TEST_STORM")); err == nil {
		return d
	}
	if os.Getenv("LOCK_TEST_LONG") != "" {
		return time.Minute
	}
	return 2 * time.Second
}
