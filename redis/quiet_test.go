package redislock

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

// quietURL has a child of the test use the Locker of a URL.
const quietURL = "QUIET_URL"

// Without a logger nothing is printed, whatever becomes of the server.
func TestNothingIsPrintedWithoutALogger(t *testing.T) {
	if url := os.Getenv(quietURL); url != "" {
		goredis.SetLogger(loud{})
		useWhileTheServerGoes(t, url)
		return
	}
	t.Parallel()
	server := servertest.Redis(t)
	p := servertest.Proxy(t, server.Addr())
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), quietURL+"="+strings.Replace(server.URL(), server.Addr(), p.Addr(), 1)+"?prefix="+backendtest.UniqueKey(t))
	var printed strings.Builder
	cmd.Stderr = &printed
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	step := func() {
		_, err := io.ReadFull(out, make([]byte, 1))
		require.NoError(t, err, "%s", &printed)
	}
	step()
	p.Refuse()
	p.Cut()
	_, _ = in.Write([]byte("\n"))
	step()
	p.Accept(t)
	_, _ = in.Write([]byte("\n"))
	rest, _ := io.ReadAll(out)
	require.NoError(t, cmd.Wait(), "%s%s", rest, &printed)
	require.Empty(t, printed.String())
}

// loud is what go-redis has when nobody has set a logger.
type loud struct{}

func (loud) Printf(_ context.Context, format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func useWhileTheServerGoes(t *testing.T, url string) {
	l, err := lock.Open(t.Context(), url, &lock.Options{TTL: time.Second})
	require.NoError(t, err)
	defer l.Close()
	next := func() {
		_, _ = os.Stdout.Write([]byte("."))
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
	held, err := l.Acquire(t.Context(), "held")
	require.NoError(t, err)
	next()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := l.Acquire(ctx, "other")
		cancel()
		require.Error(t, err)
	}
	<-held.Context().Done()
	next()
	other, err := l.Acquire(t.Context(), "other")
	require.NoError(t, err)
	require.NoError(t, other.Release(t.Context()))
}
