package mysqllock

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

// secondURL and secondKey tell a process of these tests to enter a key again, as the
// owner alice, and to leave it when its input ends.
const (
	secondURL = "MYSQLLOCK_TEST_SECOND_URL"
	secondKey = "MYSQLLOCK_TEST_SECOND_KEY"
)

// secondProcess plays that part and exits, if it is asked to.
func secondProcess() {
	url := os.Getenv(secondURL)
	if url == "" {
		return
	}
	if err := enterAgain(url, os.Getenv(secondKey)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func enterAgain(url, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := lock.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	lease, err := l.TryAcquire(ctx, key, lock.WithOwner("alice"))
	if err != nil {
		return err
	}
	fmt.Println(lease.Token())
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return lease.Release(ctx)
}

// TestOneOwnerTwoProcesses: the holds of an owner are in the row, so that another
// process with the same owner enters again, and the row counts two.
func TestOneOwnerTwoProcesses(t *testing.T) {
	mysqltest.OnBoth(t, func(t *testing.T, s *servertest.Server) {
		db := mysqltest.UserPool(t, s, "")
		l := lockerOn(t, db)
		key := backendtest.UniqueKey(t)
		lease, err := l.TryAcquire(t.Context(), key, lock.WithOwner("alice"))
		require.NoError(t, err)

		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), secondURL+"="+s.URL(), secondKey+"="+key)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var token uint64
		_, err = fmt.Fscan(out, &token)
		require.NoError(t, err)
		assert.Equal(t, lease.Token(), token)
		assert.Equal(t, "2", mysqltest.RawRow(t, db, DefaultTable, key)["hold_count"])

		require.NoError(t, lease.Release(t.Context()))
		assert.Equal(t, "1", mysqltest.RawRow(t, db, DefaultTable, key)["hold_count"])
		_, err = l.TryAcquire(t.Context(), key, lock.WithOwner("bob"))
		require.ErrorIs(t, err, lock.ErrHeld)
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
		next, err := l.TryAcquire(t.Context(), key, lock.WithOwner("bob"))
		require.NoError(t, err)
		assert.Greater(t, next.Token(), token)
		require.NoError(t, next.Release(t.Context()))
	})
}
