package servertest

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// MariaDB returns a MariaDB server for this test only, which is stopped at the
// test's cleanup. It has a database and a user for tests (see URL, MySQLDSN) and
// an administrator (MySQLAdminDSN). Committed transactions survive Kill and
// Restart with data. A server from the environment is not private: other tests
// may be using it, so tables and keys must be unique, and tests that disturb the
// server ask for WithControl. If there is no server the test is skipped, or
// fails under LOCK_TEST_REQUIRE.
func MariaDB(t TB, opts ...Option) *Server {
	t.Helper()
	return private(t, systemFinder(), mariadbKind, opts)
}

// SharedMariaDB returns the MariaDB server that all tests of this test binary
// share. It starts on first use and runs until Main returns or StopShared is
// called. Tests on it use unique tables or keys and leave the server's settings
// alone; they can't kill, freeze or restart it. Safe for parallel tests. If there
// is no server the test is skipped, or fails under LOCK_TEST_REQUIRE.
func SharedMariaDB(t TB) *Server {
	t.Helper()
	return shared.get(t, systemFinder(), mariadbKind)
}

var mariadbKind = register(&kind{
	name:          "mariadb",
	title:         "MariaDB",
	env:           "LOCK_TEST_MARIADB",
	binaries:      []string{"mariadbd", "/usr/sbin/mariadbd"},
	install:       "apt-get install mariadb-server",
	password:      sqlPassword,
	image:         "mariadb:11",
	containerPort: 3306,
	containerEnv:  sqlImageEnv,
	patience:      sqlPatience,
	speaksTLS:     true,
	prepare:       prepareMariaDB,
	command:       mariadbCommand,
	probe:         probeSQL(isMariaDB),
	url:           sqlURL,
})

// mariadbLog is enough that writers seldom wait until pages are written: of the least
// log, the server uses two thirds between two such waits.
const mariadbLog = "48M"

func prepareMariaDB(ctx context.Context, l launch) error {
	cmd := exec.CommandContext(ctx, "mariadb-install-db",
		"--no-defaults",
		"--datadir="+l.dir,
		"--tmpdir="+filepath.Dir(l.dir),
		"--auth-root-authentication-method=normal",
		"--skip-test-db",
		"--innodb-log-file-size="+mariadbLog,
	)
	cmd.Args = append(cmd.Args, asRoot()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mariadb-install-db: %w: %s", err, out)
	}
	return writeSQLInit(l)
}

func mariadbCommand(l launch) []string {
	common := []string{
		"--skip-name-resolve",
		"--performance-schema=OFF",
		"--max-connections=1000",
		"--innodb-buffer-pool-size=16M",
		"--innodb-log-file-size=" + mariadbLog,
		"--innodb-use-native-aio=OFF", // io_uring, with which some kernels lose writes
		"--innodb-flush-log-at-trx-commit=" + flushAtCommit(l),
		"--key-buffer-size=1M",
		"--aria-pagecache-buffer-size=1M",
	}
	if l.binary == "" {
		return append(append([]string{"mariadbd"}, common...), l.args...)
	}
	args := []string{
		cmp.Or(l.binary, "mariadbd"),
		"--no-defaults",
		"--datadir=" + l.dir,
		// A server that starts removes what others have under way in a tmpdir that
		// they share.
		"--tmpdir=" + filepath.Dir(l.dir),
		"--socket=" + filepath.Join(l.dir, "socket"),
		"--pid-file=" + filepath.Join(l.dir, "pid"),
		"--init-file=" + filepath.Join(l.dir, sqlInit),
		"--bind-address=" + l.host,
		"--port=" + strconv.Itoa(l.port),
	}
	if l.tls != nil {
		args = append(args, "--ssl-ca="+l.tls.CA, "--ssl-cert="+l.tls.Cert, "--ssl-key="+l.tls.Key)
	}
	args = append(args, asRoot()...)
	return append(append(args, common...), l.args...)
}

func isMariaDB(version string) error {
	if !strings.Contains(version, "MariaDB") {
		return fmt.Errorf("the server is %s, not MariaDB", version)
	}
	return nil
}
