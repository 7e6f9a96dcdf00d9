package servertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// sqlPatience: the image of MySQL initialises its data at the first start.
const sqlPatience = 2 * time.Minute

// MySQL returns a MySQL server (not MariaDB) for this test only, which is
// stopped at the test's cleanup. It has a database and a user for tests (see URL,
// MySQLDSN) and an administrator (MySQLAdminDSN). Committed transactions survive
// Kill and Restart with data. A server from the environment is not private: other
// tests may be using it, so tables and keys must be unique, and tests that
// disturb the server ask for WithControl. If there is no server the test is
// skipped, or fails under LOCK_TEST_REQUIRE.
func MySQL(t TB, opts ...Option) *Server {
	t.Helper()
	return private(t, systemFinder(), mysqlKind, opts)
}

// SharedMySQL returns the MySQL server that all tests of this test binary share.
// It starts on first use and runs until Main returns or StopShared is called.
// Tests on it use unique tables or keys and leave the server's settings alone;
// they can't kill, freeze or restart it. Safe for parallel tests. If there is no
// server the test is skipped, or fails under LOCK_TEST_REQUIRE.
func SharedMySQL(t TB) *Server {
	t.Helper()
	return shared.get(t, systemFinder(), mysqlKind)
}

var mysqlKind = register(&kind{
	name:          "mysql",
	title:         "MySQL",
	env:           "LOCK_TEST_MYSQL",
	program:       mysqlProgram,
	install:       "make images, where a Docker engine runs; or a mysqld of MySQL 8 or later on PATH",
	password:      sqlPassword,
	image:         "mysql:9",
	ownImage:      "mortise-test/mysql:9",
	containerPort: 3306,
	containerData: "/var/lib/mysql",
	containerEnv:  sqlImageEnv,
	patience:      sqlPatience,
	prepare:       prepareMySQL,
	command:       mysqlCommand,
	probe:         probeSQL(isMySQL),
	url:           sqlURL,
})

// mysqlProgram finds a mysqld that is one: on Debian the name belongs to
// MariaDB.
func mysqlProgram(f *finder) (string, error) {
	for _, name := range []string{"mysqld", "/usr/sbin/mysqld"} {
		path, err := f.lookPath(name)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		version, err := exec.CommandContext(ctx, path, "--no-defaults", "--version").CombinedOutput()
		cancel()
		if err == nil && isMySQL(string(version)) == nil {
			return path, nil
		}
		return "", missing("%s is not a MySQL server: %s", path, strings.TrimSpace(string(version)))
	}
	return "", missing("no mysqld on PATH")
}

func prepareMySQL(ctx context.Context, l launch) error {
	cmd := exec.CommandContext(ctx, l.binary,
		"--no-defaults",
		"--initialize-insecure",
		"--datadir="+l.dir,
		"--innodb-redo-log-capacity=64M",
	)
	cmd.Args = append(cmd.Args, asRoot()...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mysqld --initialize-insecure: %w: %s", err, out)
	}
	return writeSQLInit(l)
}

func mysqlCommand(l launch) []string {
	common := []string{
		"--skip-name-resolve",
		"--skip-log-bin",
		"--mysqlx=OFF",
		"--performance-schema=OFF",
		"--max-connections=1000",
		"--innodb-buffer-pool-size=32M",
		"--innodb-redo-log-capacity=64M",
		"--innodb-flush-log-at-trx-commit=" + flushAtCommit(l),
	}
	if l.binary == "" {
		if !l.persistence {
			// What was written survives the end of the process all the same, and the
			// tests' times do not depend on a disk that others write to.
			common = append(common, "--innodb-flush-method=nosync", "--innodb-doublewrite=OFF")
		}
		return append(append([]string{"mysqld"}, common...), l.args...)
	}
	args := []string{
		l.binary,
		"--no-defaults",
		"--datadir=" + l.dir,
		"--socket=" + filepath.Join(l.dir, "socket"),
		"--pid-file=" + filepath.Join(l.dir, "pid"),
		"--init-file=" + filepath.Join(l.dir, sqlInit),
		"--secure-file-priv=NULL", // its default is a directory that may not be there
		"--bind-address=" + l.host,
		"--port=" + strconv.Itoa(l.port),
	}
	args = append(args, asRoot()...)
	return append(append(args, common...), l.args...)
}

// asRoot is what mysqld and mariadbd want to hear before they run as root.
func asRoot() []string {
	if os.Geteuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

func isMySQL(version string) error {
	if strings.Contains(version, "MariaDB") {
		return fmt.Errorf("the server is %s, not MySQL", strings.TrimSpace(version))
	}
	return nil
}
