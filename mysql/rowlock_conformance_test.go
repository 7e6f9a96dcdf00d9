package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

func init() { childConfigs["row"] = rowConformance }

func rowConformance(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: time.Second})
		},
		Child:  "row " + url,
		TTL:    time.Second,
		Budget: 20 * time.Second,
	}
}

func TestRowConformance(t *testing.T) {
	conformance.Run(t, rowConformance("mysql://lk:pw@127.0.0.1:33907/lk?mode=row"))
}
