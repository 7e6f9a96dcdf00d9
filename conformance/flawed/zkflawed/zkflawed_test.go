package zkflawed

import (
	"os"
	"testing"
	"time"

	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/flawed/internal/flawedtest"
	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

var collection = flawedtest.New("zkflawed", 4, All(), Healthy())

func TestRegistry(t *testing.T) { t.Parallel(); collection.CheckRegistry(t) }

func TestPage(t *testing.T) { t.Parallel(); collection.CheckPage(t) }

func TestFlawed(t *testing.T) { t.Parallel(); collection.CheckFlawed(t, run) }

func TestHealthy(t *testing.T) { t.Parallel(); collection.CheckHealthy(t, run) }

var run = flawedtest.Run{
	Server:   func(t *testing.T, _ Lock) any { return servertest.SharedZooKeeper(t).Addr() },
	Tune:     func(_ Lock, cfg *conformance.Config) { cfg.Budget = 4 * time.Second },
	Patience: 25 * time.Second,
}
