package wire

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
)

// Settings is what a URL says, checked.
type Settings struct {
	Mode   string
	Config *mysql.Config // for one connector; clone it before changing it
	Table  string        // empty: the default of the form
	Create bool
	Pool   int // 0: the default of the form
	// Lifetime of a connection: none leads for longer to where the address has led before.
	Lifetime time.Duration
	TTL      time.Duration
	LookOnly bool         // nothing is made that is missing
	Logger   *slog.Logger // never nil
}

// ReadURL reads the URL and sets what this package needs of the driver. Everything
// else that a DSN of the driver can say has no parameter: it is either the same for
// us whatever it says (clientFoundRows, parseTime, loc, charset, interpolateParams,
// multiStatements), or would be a trap (allowCleartextPasswords, allowAllFiles,
// tls=skip-verify, session variables such as autocommit).
func ReadURL(u *backend.URL, cfg backend.OpenConfig) (Settings, error) {
	const notGiven = math.MinInt
	q := u.Query
	s := Settings{
		Mode:   q.OneOf("mode", "table", "row"),
		Table:  q.String("table", ""),
		Create: q.Bool("create", true),
		Pool:   q.Int("pool_size", notGiven),
		TTL:    cfg.TTL,
		Logger: construct.Logger(cfg.Logger),

		LookOnly: cfg.LookOnly,
	}
	c := mysql.NewConfig()
	c.User, c.Passwd = u.User, u.Password
	c.Net, c.Addr = "tcp", u.HostsWithPort("3306")[0]
	c.DBName = strings.TrimPrefix(u.Path, "/")
	c.Timeout = q.Duration("dial_timeout", dialTimeout(cfg.TTL))
	s.Lifetime = q.Duration("conn_max_lifetime", defaultLifetime)
	c.Logger = driverLog{s.Logger}
	s.Config = c
	socket := q.String("socket", "")
	secure := q.Bool("tls", false)
	ca, cert, key := q.String("ca", ""), q.String("cert", ""), q.String("key", "")
	if invalid := q.Done(); invalid != nil {
		return Settings{}, fmt.Errorf("mysqllock: %w", invalid)
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
	case s.Pool != notGiven && s.Pool <= 0:
		return s, invalidURL("pool_size must be positive")
	case c.Timeout <= 0:
		return s, invalidURL("dial_timeout must be positive")
	case s.Lifetime < 0:
		return s, invalidURL("conn_max_lifetime must not be negative")
	case !secure && ca+cert+key != "":
		return s, invalidURL("ca, cert and key need tls=true")
	case secure && socket != "":
		return s, invalidURL("tls and socket exclude each other")
	}
	s.Pool = max(s.Pool, 0)
	if socket != "" {
		c.Net, c.Addr = "unix", socket
	}
	if secure {
		var err error
		if c.TLS, err = tlsConfig(c.Addr, ca, cert, key); err != nil {
			return s, err
		}
	}
	if s.Table != "" {
		if err := CheckTable(s.Table); err != nil {
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

// driverLog passes on what the driver would write to stderr. Everything that
// matters is in the errors too.
type driverLog struct{ logger *slog.Logger }

func (l driverLog) Print(v ...any) {
	l.logger.Debug("mysqllock: driver: " + fmt.Sprint(v...))
}
