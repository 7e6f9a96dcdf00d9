package etcdlock

import (
	"context"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformanceOfURL(servertest.SharedEtcd(t).URL()))
}

// conformanceOfURL also makes the Configs in the processes that the suite starts.
func conformanceOfURL(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{})
		},
		Child:  url,
		TTL:    2 * time.Second,
		Budget: 20 * time.Second,
	}
}
