package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func init() { childConfigs["row"] = rowConfig }

func TestRowOnMariaDB(t *testing.T) {
	t.Parallel()
	conformance.Run(t, rowConfig(servertest.SharedMariaDB(t).URL()))
}

func TestRowOnMySQL(t *testing.T) {
	t.Parallel()
	conformance.Run(t, rowConfig(servertest.SharedMySQL(t).URL()))
}

// rowConfig has more connections than the default: the suite holds up to 50 keys at
// a time through one client.
func rowConfig(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url+"?mode=row&pool_size=64", backend.OpenConfig{TTL: time.Second})
		},
		Child:  "row " + url,
		TTL:    time.Second,
		Budget: 20 * time.Second,
	}
}
