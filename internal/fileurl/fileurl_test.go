package fileurl_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/internal/fileurl"
)

func TestRelative(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, url := range []string{"file:", "file:/x", "file:///x", "FILE:/x/../y", "file:?ttl=3s", "redis://h/locks", "file:~/x", "file://host/x", "locks", ""} {
		assert.False(t, fileurl.Relative(url), url)
	}
	for url, path := range map[string]string{
		"file:locks": "locks", "file:./locks": "locks", "file:a/../b?ttl=30s": "b?...", "File:my%20locks": "my%20locks", "file:.": "",
	} {
		assert.True(t, fileurl.Relative(url), url)
		assert.Equal(t, filepath.ToSlash("file:"+filepath.Join(dir, path)), fileurl.Absolute(url, dir), url)
	}
	const mistyped = "file:redis://:hunter2@h"
	assert.True(t, fileurl.Relative(mistyped))
	assert.NotContains(t, fileurl.Absolute(mistyped, dir), "hunter2")
}
