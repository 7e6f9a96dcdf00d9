package mysqllock

import (
	"context"
	"fmt"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/row"
	"github.com/mortiselock/lock/mysql/internal/table"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

func init() {
	backend.DefaultMux.Register("mysql", Opener)
	backend.DefaultMux.Declare("mysql://?mode=table", table.Guarantees(true))
	backend.DefaultMux.Declare("mysql://?mode=row", row.Guarantees())
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
	s, err := wire.ReadURL(u, cfg)
	if err != nil {
		return nil, err
	}
	b, err := openMode(ctx, s)
	if err == nil && s.LookOnly {
		return look{b, b.(operators)}, nil
	}
	if err != nil {
		if why := wire.NotMySQL(ctx, s.Config, err); why != nil {
			err = why
		}
		return nil, fmt.Errorf("%w (%s)", err, u)
	}
	return b, nil
}

func openMode(ctx context.Context, s wire.Settings) (backend.Backend, error) {
	if s.Mode == "row" {
		return row.Open(ctx, s)
	}
	return table.Open(ctx, s)
}
