// Package fileurl finds file: URLs whose directory depends on the working directory.
package fileurl

import (
	"net/url"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/mortiselock/lock/backend"
)

// Relative reports whether the URL names a directory relative to the working directory, as
// file:locks does: the same URL then means another lock wherever it is used.
func Relative(rawURL string) bool { return relative(rawURL) != "" }

// Absolute is the URL of the directory that a relative one means below dir, and what to
// write in its place. It is in words where the path looks as if it were another URL, which
// may hold a password; so may parameters, for which there is an ellipsis.
func Absolute(rawURL, dir string) string {
	path := relative(rawURL)
	abs, err := filepath.Abs(filepath.Join(dir, filepath.FromSlash(path)))
	if err != nil || strings.ContainsAny(path, "@?:") {
		return "file: with a path that begins with /"
	}
	absolute := "file:" + (&url.URL{Path: filepath.ToSlash(abs)}).EscapedPath()
	if strings.Contains(rawURL, "?") {
		absolute += "?..."
	}
	return absolute
}

// relative is the relative path of a file URL, or empty.
func relative(rawURL string) string {
	u, err := backend.ParseURL(rawURL)
	if err != nil || u.Scheme != "file" || len(u.Hosts) > 0 || strings.HasPrefix(u.Path, "~") {
		return "" // the backend says what is wrong
	}
	path := u.Path
	if runtime.GOOS == "windows" && filepath.VolumeName(filepath.FromSlash(strings.TrimPrefix(path, "/"))) != "" {
		path = strings.TrimPrefix(path, "/")
	}
	if strings.HasPrefix(path, "/") || filepath.IsAbs(filepath.FromSlash(path)) {
		return ""
	}
	return path
}
