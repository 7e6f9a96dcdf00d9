package etcdlock

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/internal/servertest"
)

const silentVar = "ETCDLOCK_TEST_SILENT"

// TestSilent: the client library logs every cancelled request and watch, which waits
// that end are made of. A program that opens a URL sees nothing of it.
func TestSilent(t *testing.T) {
	t.Parallel()
	server := servertest.Etcd(t, servertest.WithControl())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), silentVar+"="+server.URL())
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := clientOf(t, server)
	backendtest.Eventually(t, "the child waits", func() bool {
		resp, err := c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count > 1
	})
	server.Freeze(t) // in the middle, as for the child's requests
	time.Sleep(500 * time.Millisecond)
	server.Resume(t)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait(), "%s", &out)
	require.Empty(t, out.String())
}

// silentChild is the process that TestSilent listens to. It returns when there is
// none.
func silentChild() {
	url := os.Getenv(silentVar)
	if url == "" {
		return
	}
	if err := makeNoNoise(url); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// makeNoNoise cancels waits and tries until standard input is closed.
func makeNoNoise(url string) error {
	ctx := context.Background()
	a, err := lock.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := lock.Open(ctx, url, nil)
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := a.Acquire(ctx, "held"); err != nil {
		return err
	}
	closed := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		close(closed)
	}()
	for i := 0; ; i++ {
		for _, acquire := range []func(context.Context, string, ...lock.Option) (lock.Lease, error){b.Acquire, b.TryAcquire} {
			ctx, cancel := context.WithTimeout(ctx, time.Duration(i%50)*time.Millisecond)
			if _, err := acquire(ctx, "held"); err == nil {
				cancel()
				return fmt.Errorf("the key was held twice")
			}
			cancel()
		}
		select {
		case <-closed:
			if i >= 20 {
				return nil
			}
		default:
		}
	}
}
