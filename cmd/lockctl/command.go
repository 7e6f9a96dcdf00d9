package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// lookCommand finds the command as the shell would, with the shell's statuses:
// 127 when there is none, 126 when there is one that cannot be executed.
func lookCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return "", exitWith(exitNotExec, "%s is in the current directory, which is not searched; write .%c%s", name, filepath.Separator, name)
	case errors.Is(err, exec.ErrNotFound) && !strings.ContainsRune(name, filepath.Separator):
		if found := onPath(name); found != "" {
			return "", exitWith(exitNotExec, "%s cannot be executed: permission denied; check its mode", found)
		}
		return "", exitWith(exitNotFound, "%s: no such command; check its name and PATH", name)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return "", exitWith(exitNotFound, "%s: no such command", name)
	}
	return "", exitWith(exitNotExec, "%s cannot be executed: %v", name, cause(err))
}

// onPath returns the first regular file of that name on PATH.
func onPath(name string) string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}

// startError is the same for a command that was found and did not start, such as
// a script whose interpreter is missing.
func startError(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return exitWith(exitNotFound, "%s does not start: it, or the interpreter in its first line, does not exist", name)
	}
	return exitWith(exitNotExec, "%s does not start: %v", name, cause(err))
}

// cause drops the wrapping that repeats the name.
func cause(err error) error {
	var e *exec.Error
	if errors.As(err, &e) {
		return e.Err
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
