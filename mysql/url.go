package mysqllock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
)

func init() {
	backend.DefaultMux.Register("mysql", Opener)
	backend.DefaultMux.Declare("mysql://?mode=table", tableGuarantees(true))
	backend.DefaultMux.Declare("mysql://?mode=row", rowGuarantees())
}

// Opener opens the backend of a URL; it is registered for the scheme mysql.
//
//	mysql://user:password@host[:port]/database[?parameters]
//
// Parameters:
//
//	mode          table (the default) or row
//	table         the name of the table, or database.table
//	create        false: the table must exist; default true
//	pool_size     connections at most
//	dial_timeout  a duration; greeting and login may take as long, or three seconds
//	conn_max_lifetime  how old a connection that is given back may be; 0: any age
//	socket        the path of a Unix socket, in place of a host
//	tls           true: TLS, with a certificate that is valid for the host
//	ca            a PEM file with the authorities to trust; needs tls=true
//	cert, key     PEM files with a certificate of the client; need tls=true
//
// Anything else is refused with an error matching ErrInvalid: the other settings of
// the driver are chosen by this package, or don't matter to it. The connections are
// the backend's own and are closed with it.
func Opener(ctx context.Context, u *backend.URL, cfg backend.OpenConfig) (backend.Backend, error) {
	s, err := readURL(u, cfg)
	if err != nil {
		return nil, err
	}
	open := openTable
	if s.mode == "row" {
		open = openRow
	}
	b, err := open(ctx, s)
	if err == nil && s.lookOnly {
		return look{b, b.(operators)}, nil
	}
	if err != nil {
		if why := notMySQL(ctx, s.config, err); why != nil {
			err = why
		}
		return nil, fmt.Errorf("%w (%s)", err, u)
	}
	return b, nil
}

// urlSettings is what a URL says, checked.
type urlSettings struct {
	mode   string
	config *mysql.Config // for one connector; clone it before changing it
	table  string        // empty: the default of the form
	create bool
	pool   int // 0: the default of the form
	// lifetime of a connection: none leads for longer to where the address has led before.
	lifetime time.Duration
	ttl      time.Duration
	lookOnly bool         // nothing is made that is missing
	logger   *slog.Logger // never nil
}

// readURL reads the URL and sets what this package needs of the driver. Everything
// else that a DSN of the driver can say has no parameter: it is either the same for
// us whatever it says (clientFoundRows, parseTime, loc, charset, interpolateParams,
// multiStatements), or would be a trap (allowCleartextPasswords, allowAllFiles,
// tls=skip-verify, session variables such as autocommit).
func readURL(u *backend.URL, cfg backend.OpenConfig) (urlSettings, error) {
	const notGiven = math.MinInt
	q := u.Query
	s := urlSettings{
		mode:   q.OneOf("mode", "table", "row"),
		table:  q.String("table", ""),
		create: q.Bool("create", true),
		pool:   q.Int("pool_size", notGiven),
		ttl:    cfg.TTL,
		logger: cfg.Logger,

		lookOnly: cfg.LookOnly,
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	c := mysql.NewConfig()
	c.User, c.Passwd = u.User, u.Password
	c.Net, c.Addr = "tcp", u.HostsWithPort("3306")[0]
	c.DBName = strings.TrimPrefix(u.Path, "/")
	c.Timeout = q.Duration("dial_timeout", dialTimeout(cfg.TTL))
	s.lifetime = q.Duration("conn_max_lifetime", defaultLifetime)
	c.Logger = driverLog{s.logger}
	s.config = c
	socket := q.String("socket", "")
	secure := q.Bool("tls", false)
	ca, cert, key := q.String("ca", ""), q.String("cert", ""), q.String("key", "")
	if invalid := q.Done(); invalid != nil {
		return urlSettings{}, fmt.Errorf("mysqllock: %w", invalid)
	}
	switch {
	case len(u.Hosts) > 1:
		return s, invalidURL("one host only: the locks live on the primary")
	case socket != "" && len(u.Hosts) > 0:
		return s, invalidURL("socket takes the place of the host, as in mysql://user@/database?socket=/run/mysqld/mysqld.sock")
	case c.User == "":
		return s, invalidURL("a user is needed, as in mysql://user:password@host:3306/database")
	case c.DBName == "":
		return s, invalidURL("a database is needed, as in mysql://user:password@host:3306/database")
	case strings.Contains(c.DBName, "/"):
		return s, invalidURL("after the host comes the name of one database")
	case s.pool != notGiven && s.pool <= 0:
		return s, invalidURL("pool_size must be positive")
	case c.Timeout <= 0:
		return s, invalidURL("dial_timeout must be positive")
	case s.lifetime < 0:
		return s, invalidURL("conn_max_lifetime must not be negative")
	case !secure && ca+cert+key != "":
		return s, invalidURL("ca, cert and key need tls=true")
	case secure && socket != "":
		return s, invalidURL("tls and socket exclude each other")
	}
	s.pool = max(s.pool, 0)
	if socket != "" {
		c.Net, c.Addr = "unix", socket
	}
	if secure {
		var err error
		if c.TLS, err = tlsConfig(c.Addr, ca, cert, key); err != nil {
			return s, err
		}
	}
	if s.table != "" {
		if err := checkTableName(s.table); err != nil {
			return s, err
		}
	}
	return s, nil
}

func invalidURL(text string) error {
	return fmt.Errorf("mysqllock: %w: URL: %s", backend.ErrInvalid, text)
}

// defaultLifetime bounds for how long a reader may be shown what an earlier primary has:
// its writes are refused there, and then dialled anew, at once.
const defaultLifetime = 3 * time.Minute

// dialTimeout is below a third of the TTL, so that a silent server costs one
// renewal and not the lease.
func dialTimeout(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return 3 * time.Second
	}
	return min(3*time.Second, ttl/4)
}

var tableName = regexp.MustCompile(`^(?:[0-9A-Za-z_$-]{1,64}\.)?[0-9A-Za-z_$]{1,64}$`)

// checkTableName accepts table and database.table, of characters that no server
// takes for anything else.
func checkTableName(name string) error {
	if !tableName.MatchString(name) {
		return fmt.Errorf("mysqllock: %w: the table is named by at most 64 letters, digits, _ and $, with or without a database and a dot before it", backend.ErrInvalid)
	}
	return nil
}

// quoted is a checked table name as statements have it.
func quoted(name string) string {
	return "`" + strings.ReplaceAll(name, ".", "`.`") + "`"
}

// tlsConfig trusts the given authority, or the system's where none is given, and
// requires a certificate for the host.
func tlsConfig(addr, ca, cert, key string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("mysqllock: %w: parameter \"ca\": %w", backend.ErrInvalid, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("mysqllock: %w: parameter \"ca\": %s has no PEM certificate", backend.ErrInvalid, ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, invalidURL("cert and key are given together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("mysqllock: %w: parameters \"cert\" and \"key\": %w", backend.ErrInvalid, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// driverLog passes on what the driver would write to stderr. Everything that
// matters is in the errors too.
type driverLog struct{ logger *slog.Logger }

func (l driverLog) Print(v ...any) {
	l.logger.Debug("mysqllock: driver: " + fmt.Sprint(v...))
}
