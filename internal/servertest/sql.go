package servertest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// What MariaDB and MySQL servers that are started here hold. A server from the
// environment must hold it too, with the password that the environment gives.
const (
	sqlUser     = "mortise" // has every right on sqlDatabase, and none beside it
	sqlDatabase = "mortise"
	sqlAdmin    = "root" // has every right, with the same password as sqlUser
	sqlPassword = "mortise-test"
)

// MySQLDSN returns the data source name for go-sql-driver/mysql of a MariaDB or
// MySQL server: the user that tests work with and its database. Without
// parameters; don't print it.
func MySQLDSN(s *Server) string {
	return sqlConfig(s.target(), sqlUser, sqlDatabase).FormatDSN()
}

// MySQLAdminDSN is MySQLDSN for the user root, who may change the server's
// settings, end the connections of others and make users, in the same database.
func MySQLAdminDSN(s *Server) string {
	return sqlConfig(s.target(), sqlAdmin, sqlDatabase).FormatDSN()
}

func sqlURL(to target) string {
	u := url.URL{Scheme: "mysql", Host: to.addr, Path: "/" + sqlDatabase, User: url.UserPassword(sqlUser, to.password)}
	return u.String()
}

func sqlConfig(to target, user, database string) *mysql.Config {
	c := mysql.NewConfig()
	c.Net, c.Addr = "tcp", to.addr
	c.User, c.Passwd, c.DBName = user, to.password, database
	return c
}

// quiet drops what the driver logs by itself: refused connections, of which
// there are some while a server starts.
type quiet struct{}

func (quiet) Print(...any) {}

// probeSQL returns a probe that takes only servers whose version pleases.
func probeSQL(fits func(version string) error) func(context.Context, target) (string, error) {
	return func(ctx context.Context, to target) (string, error) {
		// Dialled first, since a refused connection is the most common answer.
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.addr)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		c := sqlConfig(to, sqlUser, sqlDatabase)
		c.Logger = quiet{}
		c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		connector, err := mysql.NewConnector(c)
		if err != nil {
			return "", permanent(err)
		}
		db := sql.OpenDB(connector)
		defer db.Close()
		db.SetMaxOpenConns(1)
		var version string
		if err := db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
			return "", sqlRefusal(err)
		}
		if err := fits(version); err != nil {
			return "", permanent(err)
		}
		return version, nil
	}
}

// sqlRefusal marks a refused user, password or database as permanent.
func sqlRefusal(err error) error {
	const accessDenied, databaseDenied, unknownDatabase = 1045, 1044, 1049
	if e := (*mysql.MySQLError)(nil); errors.As(err, &e) {
		switch e.Number {
		case accessDenied, databaseDenied, unknownDatabase:
			return permanent(err)
		}
	}
	return err
}

// sqlInit is the name of the file with statements that a server carries out
// before it listens, at each start.
const sqlInit = "init.sql"

// writeSQLInit makes the user, the database and the password of the
// administrator, as the official images do.
func writeSQLInit(l launch) error {
	password := "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(l.password) + "'"
	var text strings.Builder
	text.WriteString("CREATE DATABASE IF NOT EXISTS " + sqlDatabase + ";\n")
	for _, u := range []struct{ user, rights string }{
		{sqlUser + "@'%'", "ON " + sqlDatabase + ".*"},
		{sqlAdmin + "@'%'", "ON *.*"},
		{sqlAdmin + "@'127.0.0.1'", "ON *.*"},
	} {
		text.WriteString("CREATE USER IF NOT EXISTS " + u.user + ";\n")
		text.WriteString("ALTER USER " + u.user + " IDENTIFIED BY " + password + ";\n")
		text.WriteString("GRANT ALL " + u.rights + " TO " + u.user + " WITH GRANT OPTION;\n")
	}
	return os.WriteFile(filepath.Join(l.dir, sqlInit), []byte(text.String()), 0o600)
}

// sqlImageEnv is the environment of the official images.
func sqlImageEnv(c config) []string {
	password := cmp.Or(c.password, sqlPassword)
	return []string{
		"MYSQL_ROOT_PASSWORD=" + password,
		"MYSQL_DATABASE=" + sqlDatabase,
		"MYSQL_USER=" + sqlUser,
		"MYSQL_PASSWORD=" + password,
	}
}

// flushAtCommit is the value of innodb_flush_log_at_trx_commit: 2 hands each
// commit to the system, where it survives the end of the process, 1 to the disk.
func flushAtCommit(l launch) string {
	if l.persistence {
		return "1"
	}
	return "2"
}
