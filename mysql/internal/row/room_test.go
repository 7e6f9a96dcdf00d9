package row

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

func TestRoomIsWhatTheServerHasLeft(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(servertest.TB) *servertest.Server{"MariaDB": servertest.SharedMariaDB, "MySQL": servertest.SharedMySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := backendOn(t, start(t), Options{})
			var most, mine int
			require.NoError(t, b.control.QueryRowContext(t.Context(), "SELECT @@max_connections, @@max_user_connections").Scan(&most, &mine))
			require.Zero(t, mine)
			room, err := b.Room(t.Context())
			require.NoError(t, err)
			require.Positive(t, room)
			require.Less(t, room, most, "this connection counts")
		})
	}
}
