//go:build unix

// Package readme_test tries the code of the front page. It is not in the root, whose tests
// count for the module graph of those who use it.
package readme_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	"github.com/mortiselock/lock/internal/servertest"
	_ "github.com/mortiselock/lock/mysql"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

const (
	root   = "../.."
	module = "github.com/mortiselock/lock"
)

// pasted builds a program that stands on a page as if it were in this module, and returns
// where it is.
func pasted(t *testing.T, text string) (program string) {
	t.Helper()
	here, err := filepath.Abs(root)
	require.NoError(t, err)
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "examples", "pasted", "main.go"): source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	program = filepath.Join(dir, "pasted")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "./examples/pasted")
	build.Dir = here
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// goBlocks are the blocks of Go code of the front page.
func goBlocks(t *testing.T) (blocks []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		blocks = append(blocks, m[1])
	}
	require.NotEmpty(t, blocks)
	require.True(t, strings.HasPrefix(blocks[0], "package main\n"), "the first code of the front page is a program")
	return blocks
}

// What is no program on the front page is the inside of a function of one.
func TestReadmeCodeCompiles(t *testing.T) {
	t.Parallel()
	for _, block := range goBlocks(t)[1:] {
		imports := ""
		for name, path := range map[string]string{"lock": module, "config": module + "/config", "yaml": "go.yaml.in/yaml/v3"} {
			if strings.Contains(block, name+".") {
				imports += "\t\"" + path + "\"\n"
			}
		}
		pasted(t, "package main\n\nimport (\n\t\"context\"\n"+imports+")\n\nfunc main() {}\n\nfunc pasted(ctx context.Context, text []byte) error {\n"+block+"\n\t_, _ = locker, err\n\treturn nil\n}\n\nvar _ = pasted\n")
	}
}

// started is a program that runs.
type started struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

func (s *started) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *started) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func startProgram(t *testing.T, program, url string) *started {
	t.Helper()
	s := &started{cmd: exec.Command(program), done: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), "LOCK_URL="+url, "LOCK_CONFIG=")
	s.cmd.Stdout, s.cmd.Stderr = s, s
	require.NoError(t, s.cmd.Start())
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
	})
	return s
}

// ask has the program end, and returns how long that took.
func (s *started) ask(t *testing.T, sig os.Signal) time.Duration {
	t.Helper()
	begun := time.Now()
	require.NoError(t, s.cmd.Process.Signal(sig))
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		require.Fail(t, "the program does not end", "%s; it said: %s", sig, s.said())
	}
	return time.Since(begun)
}

// redlockURL is that of three nodes of their own, which are said to be new.
func redlockURL(t *testing.T) string {
	t.Helper()
	var nodes []string
	for range 3 {
		nodes = append(nodes, servertest.Redis(t).Addr())
	}
	return "redlock://" + strings.Join(nodes, ",") + "?new_nodes=true"
}

// TestReadmeProgramStops: what people paste from the front page ends when it is asked to,
// while it works and while it waits, and leaves the key free.
func TestReadmeProgramStops(t *testing.T) {
	t.Parallel()
	const (
		key  = "nightly-report"
		soon = 4 * time.Second // generous; far below the TTL, and below what the work takes

		prompt = 100 * time.Millisecond // the quickest of some, since the machine may be busy
	)
	const imports = "\t_ \"" + module + "/redis\"\n"
	text := strings.Replace(goBlocks(t)[0], imports, imports+
		"\t_ \""+module+"/redis/redlock\"\n\t_ \""+module+"/mysql\"\n\t_ \""+module+"/etcd\"\n\t_ \""+module+"/zookeeper\"\n", 1)
	require.NotEqual(t, goBlocks(t)[0], text, "the import of a backend stands elsewhere")
	program := pasted(t, text)
	for name, url := range map[string]func(t *testing.T) string{
		"file":    func(t *testing.T) string { return "file:" + t.TempDir() },
		"redis":   func(t *testing.T) string { return servertest.Redis(t).URL() },
		"redlock": redlockURL,
		"table":   func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=table" },
		"row":     func(t *testing.T) string { return servertest.SharedMariaDB(t).URL() + "?mode=row" },
		"etcd":    func(t *testing.T) string { return servertest.SharedEtcd(t).URL() },
		"zk":      func(t *testing.T) string { return servertest.SharedZooKeeper(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := url(t)
			other, err := lock.Open(t.Context(), url, nil)
			require.NoError(t, err)
			defer other.Close()
			in, ok := backend.As[backend.Inspector](other.Backend())
			require.True(t, ok)
			take := func() lock.Lease {
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				defer cancel()
				lease, err := other.Acquire(ctx, key)
				require.NoError(t, err, "the key is not free before the TTL ends")
				return lease
			}
			promptly := func(what string, end func() time.Duration) {
				quickest := soon
				for tries := 0; tries < 20 && quickest >= prompt; tries++ {
					took := end()
					if !assert.Less(t, took, soon, what) {
						return
					}
					quickest = min(quickest, took)
				}
				assert.Less(t, quickest, prompt, what)
				t.Logf("%s: it has ended %s later", what, quickest.Round(time.Millisecond))
			}
			for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
				promptly(sig.String()+" while it works", func() time.Duration {
					s := startProgram(t, program, url)
					require.Eventually(t, func() bool {
						_, err := in.Inspect(t.Context(), key)
						return err == nil && strings.Contains(s.said(), "working")
					}, time.Minute, 5*time.Millisecond, "it does not begin: %s", s.said())
					took := s.ask(t, sig)
					assert.Equal(t, 1, s.cmd.ProcessState.ExitCode(), s.said())
					assert.Contains(t, s.said(), "signal", "it does not say why")
					return took
				})
				lease := take()
				wait := 100 * time.Millisecond
				promptly(sig.String()+" while it waits", func() time.Duration {
					for ; ; wait *= 2 {
						s := startProgram(t, program, url)
						time.Sleep(wait)
						took := s.ask(t, sig)
						assert.NotContains(t, s.said(), "working")
						if strings.Contains(s.said(), key) {
							assert.Equal(t, 1, s.cmd.ProcessState.ExitCode(), s.said())
							return took
						}
						require.Less(t, wait, time.Minute, "it does not wait: %s", s.said())
					}
				})
				require.NoError(t, lease.Release(t.Context()), "who waited has not touched the hold")
				require.NoError(t, take().Release(t.Context()))
			}
		})
	}
}
