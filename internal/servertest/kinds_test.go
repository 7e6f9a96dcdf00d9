package servertest

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// trial is a kind of server with the least that shows that it works: a value
// written and read back through the client that backends use.
type trial struct {
	name  string
	start func(t TB, opts ...Option) *Server
	share func(t TB) *Server
	write func(ctx context.Context, t testing.TB, s *Server, value string) error
	read  func(ctx context.Context, t testing.TB, s *Server) (string, error) // "" if there is none
}

func trials() []trial {
	return []trial{
		{"MariaDB", MariaDB, SharedMariaDB, writeSQL, readSQL},
		{"MySQL", MySQL, SharedMySQL, writeSQL, readSQL},
		{"Etcd", Etcd, SharedEtcd, writeEtcd, readEtcd},
		{"EtcdCurrent", EtcdCurrent, SharedEtcdCurrent, writeEtcd, readEtcd},
		{"ZooKeeper", ZooKeeper, SharedZooKeeper, writeZK, readZK},
	}
}

func eachTrial(t *testing.T, test func(t *testing.T, k trial)) {
	t.Parallel()
	for _, k := range trials() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(t, k)
		})
	}
}

func openSQL(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	c.Logger = quiet{}
	connector, err := mysql.NewConnector(c)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func writeSQL(ctx context.Context, t testing.TB, s *Server, value string) error {
	db := openSQL(t, MySQLDSN(s))
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS trial (id INT PRIMARY KEY, v TEXT) ENGINE=InnoDB"); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, "REPLACE INTO trial VALUES (1, ?)", value)
	return err
}

func readSQL(ctx context.Context, t testing.TB, s *Server) (string, error) {
	const noSuchTable = 1146
	var value string
	err := openSQL(t, MySQLDSN(s)).QueryRowContext(ctx, "SELECT v FROM trial").Scan(&value)
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) && e.Number == noSuchTable {
		return "", nil
	}
	return value, err
}

func openEtcd(t testing.TB, servers ...*Server) *clientv3.Client {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func writeEtcd(ctx context.Context, t testing.TB, s *Server, value string) error {
	_, err := openEtcd(t, s).Put(ctx, "trial", value)
	return err
}

func readEtcd(ctx context.Context, t testing.TB, s *Server) (string, error) {
	got, err := openEtcd(t, s).Get(ctx, "trial")
	if err != nil || len(got.Kvs) == 0 {
		return "", err
	}
	return string(got.Kvs[0].Value), nil
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// withZK runs do in a session, with the patience of ctx, which the client
// library does not know.
func withZK(ctx context.Context, s *Server, do func(*zk.Conn) error) error {
	conn, _, err := zk.Connect([]string{s.Addr()}, 5*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, conn.Close)
	defer func() {
		if stop() {
			conn.Close()
		}
	}()
	return errors.Join(do(conn), ctx.Err())
}

func writeZK(ctx context.Context, _ testing.TB, s *Server, value string) error {
	return withZK(ctx, s, func(c *zk.Conn) error {
		_, err := c.Create("/trial", []byte(value), 0, zk.WorldACL(zk.PermAll))
		if errors.Is(err, zk.ErrNodeExists) {
			_, err = c.Set("/trial", []byte(value), -1)
		}
		return err
	})
}

func readZK(ctx context.Context, _ testing.TB, s *Server) (value string, err error) {
	err = withZK(ctx, s, func(c *zk.Conn) error {
		got, _, err := c.Get("/trial")
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		value = string(got)
		return err
	})
	return value, err
}

func TestKindAnswersAndStops(t *testing.T) {
	eachTrial(t, func(t *testing.T, k trial) {
		var addr string
		result := attempt(func(tb TB) {
			s := k.start(tb, WithControl())
			addr = s.Addr()
			if s.Version() == "" {
				tb.Fatalf("no version")
			}
			if pid := s.Pid(); pid != 0 && listens(os.Getpid(), addr) == nil && listens(1, addr) != nil {
				tb.Fatalf("the port belongs to this process")
			}
			if err := k.write(t.Context(), t, s, "x"); err != nil {
				tb.Fatalf("%v", err)
			}
			if got, err := k.read(t.Context(), t, s); err != nil || got != "x" {
				tb.Fatalf("read %q, %v", got, err)
			}
		})
		if result.skipped != "" {
			t.Skip(result.skipped)
		}
		require.Empty(t, result.failed)
		_, err := net.Dial("tcp", addr)
		require.Error(t, err, "the server outlived its test")
	})
}

func TestKindShared(t *testing.T) {
	eachTrial(t, func(t *testing.T, k trial) {
		a, b := k.share(t), k.share(t)
		require.Same(t, a, b)
		_, err := k.read(t.Context(), t, a)
		require.NoError(t, err)
	})
}

func TestKindFaults(t *testing.T) {
	eachTrial(t, func(t *testing.T, k trial) {
		s := k.start(t, WithControl())
		addr, pid := s.Addr(), s.Pid()
		require.NoError(t, k.write(t.Context(), t, s, "kept"))

		s.Freeze(t)
		_, err := k.read(short(t), t, s)
		require.Error(t, err, "a frozen server does not answer")
		s.Resume(t)
		got, err := k.read(t.Context(), t, s)
		require.NoError(t, err)
		require.Equal(t, "kept", got)

		s.Kill(t)
		_, err = net.Dial("tcp", addr)
		require.Error(t, err)
		require.Zero(t, s.Pid())

		s.Restart(t, true)
		require.Equal(t, addr, s.Addr())
		if pid != 0 {
			require.NotEqual(t, pid, s.Pid())
		}
		got, err = k.read(t.Context(), t, s)
		require.NoError(t, err)
		require.Equal(t, "kept", got, "what was confirmed survives kill -9")

		s.Restart(t, false)
		got, err = k.read(t.Context(), t, s)
		require.NoError(t, err)
		require.Empty(t, got, "its data was thrown away")
	})
}

func TestListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, listens(os.Getpid(), l.Addr().String()))
	require.NoError(t, listens(0, l.Addr().String()))
	s := Redis(t, WithControl())
	if s.Pid() == 0 {
		t.Skip("needs a redis-server program on this machine: this one runs in a container, whose processes have other ids")
	}
	require.NoError(t, listens(s.Pid(), s.Addr()))
	if _, err := os.Stat("/proc/" + strconv.Itoa(s.Pid()) + "/fd"); err == nil {
		require.ErrorContains(t, listens(s.Pid(), l.Addr().String()), "another process")
	}
}

// BenchmarkStart measures how long a test waits for each server.
func BenchmarkStart(b *testing.B) {
	for _, k := range trials() {
		b.Run(k.name, func(b *testing.B) {
			for b.Loop() {
				k.start(b, WithControl()).Kill(b)
			}
		})
	}
}
