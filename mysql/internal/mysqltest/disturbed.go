package mysqltest

import (
	"testing"

	"github.com/mortiselock/lock/internal/servertest"
)

// Disturbance is a test that disturbs a server, or changes its settings. The other server is
// one that nobody disturbs, with the same accounts.
type Disturbance struct {
	// What happens to the server.
	What string
	// Test does that.
	Test func(t *testing.T, s, other *servertest.Server)
}

// Disturbed runs the tests one after the other, on a MariaDB and on a MySQL that nobody else
// uses: to start one for each of them takes longer than they do.
func Disturbed(t *testing.T, tests ...Disturbance) {
	t.Parallel()
	type kind struct {
		start  func(servertest.TB, ...servertest.Option) *servertest.Server
		shared func(servertest.TB) *servertest.Server
	}
	Together(t, map[string]kind{
		"MariaDB": {servertest.MariaDB, servertest.SharedMariaDB}, "MySQL": {servertest.MySQL, servertest.SharedMySQL},
	}, func(t *testing.T, k kind) {
		other := k.shared(t)
		s := k.start(t, servertest.WithControl(), servertest.WithPassword(other.Password()),
			servertest.WithArgs("--log-bin=bin", "--sync-binlog=0", "--server-id=1"))
		for _, d := range tests {
			if !t.Run(d.What, func(t *testing.T) { d.Test(t, s, other) }) {
				return // who knows what it has left
			}
		}
	})
}
