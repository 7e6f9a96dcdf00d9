package mysqllock

import (
	"database/sql/driver"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/mysql/internal/wire"
)

// NewConnector is mysql.NewConnector for [NewRow], and for pools that are given to
// [NewTable], with sql.OpenDB. The connections of a URL are made in this way. The config is
// not changed; one with a DialFunc is refused with ErrInvalid, since the connector dials by
// itself.
//
// A hold of [NewRow] costs less, since its statements can be given up without the driver's help
// when their context has ended and the server does not answer. When a server says that it has become
// read-only, the connections are given up, so that the next ones lead to the new primary.
// Where the config has a Timeout, greeting and login together take no longer than that
// either, or three seconds.
func NewConnector(cfg *mysql.Config) (driver.Connector, error) { return wire.NewConnector(cfg, 0) }
