package servertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// moduleBuildBound is how long the build of a program may take, downloads included.
const moduleBuildBound = 5 * time.Minute

var moduleBuilds memo[string]

// moduleProgram is the program of a module below internal, which is apart so that what it
// needs is not in the library's go.mod. It is built unless the cache has it.
func (f *finder) moduleProgram(name string) (string, error) {
	return moduleBuilds.get(name, func() (string, error) {
		dir, err := innerModule(name)
		if err != nil {
			return "", missing("%v", err)
		}
		path, err := modulePath(name, dir)
		if err != nil {
			return "", missing("%v", err)
		}
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		tool, err := f.lookPath("go")
		if err != nil {
			return "", missing("no go on PATH to build internal/%s with", name)
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
		ctx, cancel := context.WithTimeout(context.Background(), moduleBuildBound)
		defer cancel()
		cmd := exec.CommandContext(ctx, tool, "build", "-trimpath", "-buildvcs=false", "-o", temp.Name(), ".")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", missing("building %s failed: %v: %s", dir, err, out[max(0, len(out)-1000):])
		}
		return path, os.Rename(temp.Name(), path)
	})
}

// innerModule finds the module above the working directory, which is that of the package
// under test.
func innerModule(name string) (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		dir := filepath.Join(at, "internal", name)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(at)
		if up == at {
			return "", fmt.Errorf("no internal/%s above the working directory", name)
		}
		at = up
	}
}

// modulePath names the program after all that it is made from, so that a new version is
// another file.
func modulePath(name, dir string) (string, error) {
	hash := sha256.New()
	for _, file := range []string{"main.go", "go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
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
	return filepath.Join(cache, name+"-"+hex.EncodeToString(hash.Sum(nil)[:8])), nil
}
