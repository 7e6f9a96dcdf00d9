package lock_test

import (
	"archive/zip"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// publish writes the module into a file proxy, as a tag would publish it.
func publish(t *testing.T, version string) (proxy string) {
	t.Helper()
	proxy = t.TempDir()
	dir := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, version+".mod"), mod, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, version+".info"), []byte(`{"Version":"`+version+`"}`), 0o644))
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	require.NoError(t, err)
	defer f.Close()
	w := zip.NewWriter(f)
	require.NoError(t, filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		in, err := w.Create(module + "@" + version + "/" + filepath.ToSlash(p))
		if err == nil {
			_, err = in.Write(text)
		}
		return err
	}))
	require.NoError(t, w.Close())
	return proxy
}

// A program that locks in Redis depends on little, and on nothing that only tests need.
func TestModuleGraphOfARedisProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go mod tidy")
	}
	t.Parallel()
	const version = "v0.1.0"
	goEnv := func(name string) string {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	known := filepath.Join(goEnv("GOMODCACHE"), "cache", "download")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/program\n\ngo 1.26.0\n\nrequire "+module+" "+version+"\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nimport (\n\t_ \""+module+"\"\n\t_ \""+module+"/redis\"\n)\n\nfunc main() {}\n"), 0o644))
	tidy := exec.CommandContext(t.Context(), "go", "mod", "tidy")
	tidy.Dir = dir
	tidy.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GONOSUMDB=*", "GONOSUMCHECK=1", "GONOPROXY=none", "GOPRIVATE=",
		"GOMODCACHE="+t.TempDir(), "GOPROXY=file://"+publish(t, version)+",file://"+known+","+goEnv("GOPROXY"))
	out, err := tidy.CombinedOutput()
	require.NoError(t, err, "%s", out)
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	require.NoError(t, err)
	assert.LessOrEqual(t, strings.Count(string(sums), "\n"), 35, "%s", sums)
	for _, part := range []string{"docker", "opencontainers", "etcd", "grpc", "opentelemetry"} {
		assert.NotContains(t, string(sums), part)
	}
}
