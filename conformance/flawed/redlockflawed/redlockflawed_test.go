package redlockflawed

import (
	"os"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

var collection = flawedtest.New("redlockflawed", 4, All(), Healthy())

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func TestFlawed(t *testing.T) { t.Parallel(); collection.CheckFlawed(t, run) }

func TestHealthy(t *testing.T) { t.Parallel(); collection.CheckHealthy(t, run) }

var run = flawedtest.Run{
	Server: nodes,
	Tune: func(l Lock, cfg *conformance.Config) {
		cfg.Parallel = 6
		switch {
		case l.Rule != "":
			if !l.Slow {
				cfg.Budget *= 20 // races are met sooner or later, and the run then ends
			}
			// The rule and its neighbours: where nothing is ever granted, the rest of the
			// suite waits for minutes until its cases are cut off.
			cfg.Only = []string{l.Rule, "RenewKeeps"}
		case l.Slow:
			// Each release waits for the server that stands still, which the rules on times
			// notice.
			cfg.Only = []string{z22.Rule, z23.Rule, z23Minority.Rule, z21Errors.Rule, "RenewKeeps"}
		}
	},
}

// nodes starts servers for a lock, the first of which stands still if it is slow.
func nodes(t *testing.T, l Lock) any {
	t.Helper()
	var clients []*goredis.Client
	for i := range l.On.(onNodes).nodes {
		s := servertest.Redis(t, servertest.WithControl())
		c := goredis.NewClient(&goredis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 100})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
		if l.Slow && i == 0 {
			s.Freeze(t)
		}
	}
	return clients
}
