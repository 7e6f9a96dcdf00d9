package rolling

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/servertest"
)

// silentVar has the test binary use the Locker of a URL while its server goes and comes.
const silentVar = "SILENT_URL"

// TestNothingIsPrintedWithoutALogger, neither by this module nor by the client libraries,
// whatever becomes of the server.
func TestNothingIsPrintedWithoutALogger(t *testing.T) {
	one := func(shared func(servertest.TB) *servertest.Server, query string) func(t *testing.T) (string, []*servertest.TCPProxy) {
		return func(t *testing.T) (string, []*servertest.TCPProxy) {
			server := shared(t)
			p := servertest.Proxy(t, server.Addr())
			return server.URLAt(p.Addr()) + query, []*servertest.TCPProxy{p}
		}
	}
	for name, open := range map[string]func(t *testing.T) (string, []*servertest.TCPProxy){
		"redis":     one(servertest.SharedRedis, ""),
		"table":     one(servertest.SharedMariaDB, "?mode=table"),
		"row":       one(servertest.SharedMariaDB, "?mode=row"),
		"etcd":      one(servertest.SharedEtcd, ""),
		"zookeeper": one(servertest.SharedZooKeeper, ""),
		"redlock": func(t *testing.T) (string, []*servertest.TCPProxy) {
			url := redlockURL(t)
			var proxies []*servertest.TCPProxy
			for addr := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(url, "redlock://"), "?new_nodes=true"), ",") {
				p := servertest.Proxy(t, addr)
				url = strings.Replace(url, addr, p.Addr(), 1)
				proxies = append(proxies, p)
			}
			return url, proxies
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, proxies := open(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), silentVar+"="+url)
			var printed strings.Builder
			cmd.Stderr = &printed
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewReader(out)
			step := func(want string) {
				line, _ := lines.ReadString('\n')
				require.Equal(t, want+"\n", line, "%s", &printed)
			}
			step("held")
			for _, p := range proxies {
				p.Refuse()
				p.Cut()
			}
			_, _ = io.WriteString(in, "\n")
			step("lost")
			for _, p := range proxies {
				p.Accept(t)
			}
			_, _ = io.WriteString(in, "\n")
			step("held again")
			require.NoError(t, cmd.Wait(), "%s", &printed)
			require.Empty(t, printed.String())
		})
	}
}

// runSilent is the main function of a process that uses the Locker of a URL.
func runSilent(url string) {
	err := func() error {
		ctx := context.Background()
		l, err := lock.Open(ctx, url, &lock.Options{TTL: 2 * time.Second})
		if err != nil {
			return err
		}
		defer l.Close()
		key := "silent/" + backend.NewID().Hex()
		held, err := l.Acquire(ctx, key)
		if err != nil {
			return err
		}
		next := func(what string) {
			fmt.Println(what)
			_, _ = os.Stdin.Read(make([]byte, 1))
		}
		next("held")
		for range 20 {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			_, err := l.Acquire(ctx, key+"/other")
			cancel()
			if err == nil {
				return errors.New("acquired without a server")
			}
		}
		<-held.Context().Done()
		next("lost")
		other, err := l.Acquire(ctx, key+"/other")
		if err != nil {
			return err
		}
		fmt.Println("held again")
		return other.Release(ctx)
	}()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
