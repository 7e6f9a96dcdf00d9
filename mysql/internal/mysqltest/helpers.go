package mysqltest

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/stretchr/testify/require"
)

// TTL is that of holds which nobody renews, and which no test waits for: longer than
// any step of a test takes.
const TTL = 5 * time.Minute

var keys atomic.Int64

// UniqueKey is a key that no other test uses.
func UniqueKey(t testing.TB) string {
	return fmt.Sprintf("%s/%d/%s", t.Name(), keys.Add(1), backend.NewID().Hex()[:8])
}

func Request(key string) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), TTL: TTL}
}

func OwnedRequest(key, owner string, ttl time.Duration) backend.Request {
	return backend.Request{Key: key, ID: backend.NewID(), Owner: owner, TTL: ttl}
}

// Granted asks for the hold and requires it.
func Granted(t testing.TB, b backend.Backend, req backend.Request) (backend.Hold, backend.Grant) {
	t.Helper()
	g, err := b.Try(t.Context(), req)
	require.NoError(t, err)
	hold := backend.HoldOf(req)
	hold.Token = g.Token
	return hold, g
}

// Eventually waits for something that has no signal.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, Patience, 10*time.Millisecond, what)
}

func Short(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Patience is for what must come: only what never comes takes longer on a busy machine.
const Patience = time.Minute

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

func IsMariaDB(t testing.TB, s *servertest.Server) bool {
	t.Helper()
	return strings.Contains(s.Version(), "MariaDB")
}

// Number is the one number that a query returns.
func Number(t testing.TB, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n), query)
	return n
}

// WaitsForRow returns when a statement of the connection waits for a row.
func WaitsForRow(t testing.TB, admin *sql.DB, connection int) {
	t.Helper()
	Eventually(t, "the statement waits for a row", func() bool {
		return Number(t, admin, "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = ? AND trx_state = 'LOCK WAIT'", connection) == 1
	})
}

// UnderWay returns when the server carries out a statement that begins with the text.
func UnderWay(t testing.TB, admin *sql.DB, text string) {
	t.Helper()
	Eventually(t, "the statement is under way", func() bool {
		return Number(t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE ? AND ID <> CONNECTION_ID()", text+"%") == 1
	})
}

// Ended waits for the end of a lease and returns its cause, which tells whether it was
// noticed or the time was over.
func Ended(t testing.TB, l lock.Lease) error {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(Patience):
		require.Fail(t, "the lease has not ended")
	}
	return context.Cause(l.Context())
}

// Renewals is an observer and the renewals that it has been told of.
func Renewals() (lock.Observer, <-chan lock.Event) {
	events := make(chan lock.Event, 1000)
	return func(_ context.Context, e lock.Event) {
		if e.Kind == lock.EventRenewal {
			events <- e
		}
	}, events
}

// PlainConnector hides everything but the methods of driver.Connector, for those that are
// put around it.
type PlainConnector struct{ driver.Connector }

// Connector is one as users make it, for the account of the tests.
func Connector(t testing.TB, s *servertest.Server, change func(*mysql.Config)) *PlainConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s))
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	if change != nil {
		change(cfg)
	}
	c, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	return &PlainConnector{c}
}

// ConnectorWith is a connector of a DSN with parameters.
func ConnectorWith(t testing.TB, s *servertest.Server, params string) *PlainConnector {
	t.Helper()
	cfg, err := mysql.ParseDSN(servertest.MySQLDSN(s) + "?" + params)
	require.NoError(t, err)
	cfg.Logger = &mysql.NopLogger{}
	c, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	return &PlainConnector{c}
}

// Pool is a pool with the settings of the DSN. The parameters are added to it.
func Pool(t testing.TB, dsn, params string) *sql.DB {
	t.Helper()
	if params != "" {
		dsn += "?" + params
	}
	c, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() {
		if err := db.Close(); !errors.Is(err, driver.ErrBadConn) { // its server may have died
			require.NoError(t, err)
		}
	})
	return db
}

// UserPool and AdminPool are pools of the two accounts that servers have for tests.
func UserPool(t testing.TB, s *servertest.Server, params string) *sql.DB {
	t.Helper()
	return Pool(t, servertest.MySQLDSN(s), params)
}

func AdminPool(t testing.TB, s *servertest.Server) *sql.DB {
	t.Helper()
	return Pool(t, servertest.MySQLAdminDSN(s), "")
}

// OwnTable is the name of a table for this test alone, which is dropped at its end.
func OwnTable(t testing.TB, db *sql.DB) string {
	t.Helper()
	name := fmt.Sprintf("t%d_%s", keys.Add(1), backend.NewID().Hex()[:8])
	t.Cleanup(func() {
		_, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+name)
		require.NoError(t, err)
	})
	return name
}

func Exec(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// Numbered adds copies of the row of a key, under the prefix and the numbers below n that
// meet the condition, with four digits. The first column is the key.
func Numbered(t testing.TB, db *sql.DB, table, columns, key, prefix string, n int, condition string) {
	t.Helper()
	first, _, _ := strings.Cut(columns, ",")
	Exec(t, db, "INSERT INTO "+table+" ("+columns+")"+
		" WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i<?)"+
		" SELECT CONCAT(?, LPAD(i, 4, '0'))"+strings.TrimPrefix(columns, first)+" FROM n JOIN "+table+" WHERE "+first+"=? AND "+condition,
		n-1, prefix, []byte(key))
}

// RawRow is the row as an operator sees it.
func RawRow(t testing.TB, db *sql.DB, table, key string) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT * FROM "+table+" WHERE lock_key=?", []byte(key))
	require.NoError(t, err)
	defer rows.Close()
	names, err := rows.Columns()
	require.NoError(t, err)
	require.True(t, rows.Next(), "no row")
	values := make([]sql.RawBytes, len(names))
	scan := make([]any, len(names))
	for i := range values {
		scan[i] = &values[i]
	}
	require.NoError(t, rows.Scan(scan...))
	out := map[string]string{}
	for i, n := range names {
		out[n] = string(values[i])
	}
	return out
}

// Logged is a logger and what it has written.
func Logged() (*slog.Logger, func() string) {
	var mu sync.Mutex
	var buf bytes.Buffer
	write := writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	})
	return slog.New(slog.NewTextHandler(write, nil)), func() string {
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// StrangeSessions are parameters of a DSN with which a program may open its pool.
func StrangeSessions(t testing.TB, s *servertest.Server) map[string]string {
	t.Helper()
	sessions := map[string]string{
		"not strict":         "sql_mode=''",
		"ANSI":               "sql_mode='ANSI,STRICT_ALL_TABLES'",
		"no backslashes":     "sql_mode='NO_BACKSLASH_ESCAPES'",
		"time zone":          "time_zone='%2B09:00'",
		"interpolated":       "interpolateParams=true&multiStatements=true&parseTime=true&loc=Asia%2FTokyo",
		"latin1":             "charset=latin1",
		"safe updates":       "sql_safe_updates=1",
		"compressed":         "compress=true",
		"result of an alias": "columnsWithAlias=true",
		"found rows":         "clientFoundRows=true",
	}
	isolation := "transaction_isolation"
	if IsMariaDB(t, s) {
		isolation = "tx_isolation"
		sessions["empty is NULL"] = "sql_mode='EMPTY_STRING_IS_NULL'"
		sessions["Oracle"] = "sql_mode='ORACLE'"
		sessions["simultaneous"] = "sql_mode='SIMULTANEOUS_ASSIGNMENT'"
	} else {
		sessions["truncated fractions"] = "sql_mode='TIME_TRUNCATE_FRACTIONAL,PAD_CHAR_TO_FULL_LENGTH'"
	}
	for _, level := range []string{"REPEATABLE-READ", "READ-COMMITTED", "SERIALIZABLE", "READ-UNCOMMITTED"} {
		sessions[level] = isolation + "='" + level + "'"
	}
	return sessions
}

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

// Deadlocks counts those that the server has seen since it started.
func Deadlocks(t testing.TB, admin *sql.DB) int {
	t.Helper()
	return Number(t, admin, "SELECT MAX(count) FROM information_schema.innodb_metrics WHERE name='lock_deadlocks'")
}

// LimitedUser makes a user with a password and rights on the database, and returns
// the DSN for it.
func LimitedUser(t *testing.T, s *servertest.Server, rights ...string) string {
	t.Helper()
	admin := AdminPool(t, s)
	name := "u" + backend.NewID().Hex()[:12]
	Exec(t, admin, "CREATE USER "+name+"@'%' IDENTIFIED BY 'pass-secret'")
	t.Cleanup(func() { _, _ = admin.Exec("DROP USER " + name + "@'%'") })
	for _, r := range rights {
		Exec(t, admin, "GRANT "+r+" TO "+name+"@'%'")
	}
	return fmt.Sprintf("%s:pass-secret@tcp(%s)/mortise", name, s.Addr())
}

// table makes a table for the work of one test and returns its name.
func WorkTable(t testing.TB, db *sql.DB) string {
	t.Helper()
	name := fmt.Sprintf("work_%d_%d", time.Now().UnixNano(), keys.Add(1))
	Exec(t, db, "CREATE TABLE "+name+" (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	Exec(t, db, "INSERT INTO "+name+" VALUES (1, 0), (2, 0)")
	t.Cleanup(func() { _, _ = db.ExecContext(context.Background(), "DROP TABLE "+name) })
	return name
}

var AlterStatement = regexp.MustCompile(`(?m)^ALTER TABLE [^;]*`)
