package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// A port that is not MySQL's is told from a server that is slow or full.
func TestOpenWhereNoMySQLListens(t *testing.T) {
	t.Parallel()
	type words struct{ mode, words, says string }
	cases := map[string]words{}
	for _, mode := range []string{"table", "row"} {
		cases["silent "+mode] = words{mode, "", "does not greet, as MySQL and MariaDB do at once: check the host and the port, or whether the server hangs"}
		cases["another greets "+mode] = words{mode, "220 mail.example ESMTP ready\r\n", "does not speak the protocol of MySQL: check the host and the port"}
		cases["a few bytes "+mode] = words{mode, "-E\r\n", "does not greet"}
	}
	mysqltest.Together(t, cases, func(t *testing.T, c words) {
		addr := servertest.Words(t, c.words)
		_, err := lock.Open(backendtest.Short(t, 2*time.Second), "mysql://u:hunter2@"+addr+"/d?mode="+c.mode, nil)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "what listens at "+addr+" "+c.says)
		assert.NotContains(t, err.Error(), "hunter2")
		assert.NotContains(t, err.Error(), "pool")
	})
}

// A port of something else that says nothing is told after what a login may take, and not
// after what a statement may.
func TestOpenGivesUpASilentPortSoon(t *testing.T) {
	t.Parallel()
	mysqltest.Together(t, map[string]string{"table": "table", "row": "row"}, func(t *testing.T, mode string) {
		start := time.Now()
		_, err := lock.Open(t.Context(), "mysql://u:p@"+servertest.Words(t, "")+"/d?mode="+mode, nil)
		require.ErrorIs(t, err, lock.ErrUnavailable)
		require.ErrorContains(t, err, "does not greet")
		require.Less(t, time.Since(start), answerLimit-time.Second)
	})
}

// What MySQL itself says is not replaced.
func TestOpenErrorsOfMySQLStay(t *testing.T) {
	t.Parallel()
	s := servertest.SharedMariaDB(t)
	_, err := lock.Open(t.Context(), "mysql://nobody:hunter2@"+s.Addr()+"/d", nil)
	require.ErrorIs(t, err, lock.ErrPermanent)
	assert.ErrorContains(t, err, "check user and password")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = lock.Open(ctx, s.URL(), nil)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "what listens")
}
