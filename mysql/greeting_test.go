package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/servertest"
)

// A port that is not MySQL's is told from a server that is slow or full.
func TestOpenWhereNoMySQLListens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ words, says string }{
		"silent":         {"", "does not greet, as MySQL and MariaDB do at once: check the host and the port, or whether the server hangs"},
		"another greets": {"220 mail.example ESMTP ready\r\n", "does not speak the protocol of MySQL: check the host and the port"},
		"a few bytes":    {"-E\r\n", "does not greet"},
	} {
		for _, mode := range []string{"table", "row"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				addr := servertest.Words(t, c.words)
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				_, err := lock.Open(ctx, "mysql://u:hunter2@"+addr+"/d?mode="+mode)
				require.ErrorIs(t, err, lock.ErrUnavailable)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.ErrorContains(t, err, "what listens at "+addr+" "+c.says)
				assert.NotContains(t, err.Error(), "hunter2")
				assert.NotContains(t, err.Error(), "pool")
			})
		}
	}
}

// What MySQL itself says is not replaced.
func TestOpenErrorsOfMySQLStay(t *testing.T) {
	t.Parallel()
	s := servertest.SharedMariaDB(t)
	_, err := lock.Open(t.Context(), "mysql://nobody:hunter2@"+s.Addr()+"/d")
	require.ErrorIs(t, err, lock.ErrPermanent)
	assert.ErrorContains(t, err, "check user and password")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = lock.Open(ctx, s.URL())
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "what listens")
}
