package servertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// EtcdCurrent is Etcd for a current server in place of the one on PATH: it is
// built from its Go module (internal/etcdserver) when a machine needs it for the
// first time, which takes about a minute, and kept in the user's cache directory.
func EtcdCurrent(t TB, opts ...Option) *Server {
	t.Helper()
	return private(t, systemFinder(), etcdCurrentKind, opts)
}

// SharedEtcdCurrent is SharedEtcd for a current server; see EtcdCurrent.
func SharedEtcdCurrent(t TB) *Server {
	t.Helper()
	return shared.get(t, systemFinder(), etcdCurrentKind)
}

// EtcdCurrentCluster is EtcdCluster for a current server; see EtcdCurrent.
func EtcdCurrentCluster(t TB, n int, opts ...Option) []*Server {
	t.Helper()
	return cluster(t, systemFinder(), etcdCurrentKind, n, opts)
}

var etcdCurrentKind = register(func() *kind {
	k := *etcdKind
	k.name = "etcd-current"
	k.title = "current etcd"
	k.env = "LOCK_TEST_ETCD_CURRENT"
	k.ownImage = "" // which is an older one
	k.program = etcdCurrentProgram
	k.install = "let go build in internal/etcdserver reach the Go module proxy"
	k.command = func(l launch) []string {
		args := etcdCommand(l)
		if !l.persistence {
			// What was written survives the end of the process, not that of the machine.
			args = append(args, "--unsafe-no-fsync")
		}
		return args
	}
	return &k
}())

// etcdBuildBound is how long the build may take, downloads included.
const etcdBuildBound = 5 * time.Minute

var etcdBuilds memo[string]

// etcdCurrentProgram builds the server unless the cache has it.
func etcdCurrentProgram(f *finder) (string, error) {
	return etcdBuilds.get("", func() (string, error) {
		dir, err := etcdModule()
		if err != nil {
			return "", missing("%v", err)
		}
		path, err := etcdCachePath(dir)
		if err != nil {
			return "", missing("%v", err)
		}
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		tool, err := f.lookPath("go")
		if err != nil {
			return "", missing("no go on PATH to build etcd with")
		}
		// Others may be building it too, so it appears under its name when it is done.
		temp, err := os.CreateTemp(filepath.Dir(path), "building-*")
		if err != nil {
			return "", missing("%v", err)
		}
		defer os.Remove(temp.Name())
		if err := temp.Close(); err != nil {
			return "", err
		}
		ctx, cancel := context.WithTimeout(context.Background(), etcdBuildBound)
		defer cancel()
		cmd := exec.CommandContext(ctx, tool, "build", "-buildvcs=false", "-o", temp.Name(), ".")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", missing("building etcd in %s failed: %v: %s", dir, err, out[max(0, len(out)-1000):])
		}
		return path, os.Rename(temp.Name(), path)
	})
}

// etcdModule finds internal/etcdserver above the working directory, which is
// that of the package under test.
func etcdModule() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		dir := filepath.Join(at, "internal", "etcdserver")
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(at)
		if up == at {
			return "", errors.New("no internal/etcdserver above the working directory")
		}
		at = up
	}
}

// etcdCachePath names the program after all that it is made from, so that a new
// version is another file.
func etcdCachePath(dir string) (string, error) {
	hash := sha256.New()
	for _, name := range []string{"main.go", "go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		hash.Write(text)
	}
	hash.Write([]byte(runtime.Version() + runtime.GOOS + runtime.GOARCH))
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "mortise-servertest")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	return filepath.Join(cache, "etcd-"+hex.EncodeToString(hash.Sum(nil)[:8])), nil
}
