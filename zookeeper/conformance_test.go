package zklock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformanceOfURL(servertest.SharedZooKeeper(t).URL()))
}

func TestConformanceOfCluster(t *testing.T) {
	t.Parallel()
	var hosts []string
	for _, s := range servertest.ZooKeeperCluster(t, 3) {
		hosts = append(hosts, s.Addr())
	}
	cfg := conformanceOfURL("zk://" + strings.Join(hosts, ","))
	cfg.Name = "zookeeper, three members"
	conformance.Run(t, cfg)
}

// conformanceTTL is four ticks of the test servers.
const conformanceTTL = 2 * time.Second

// conformanceOfURL also makes the Configs in the processes that the suite starts.
func conformanceOfURL(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: conformanceTTL})
		},
		Child:  url,
		TTL:    conformanceTTL,
		Budget: 15 * time.Second,
	}
}
