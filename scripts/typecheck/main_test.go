package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What only one system compiles is checked for that system, in tests too.
func TestFaultsOfOneSystem(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.org/m\n\ngo 1.24\n",
		"m.go":              "package m\n\nimport \"os\"\n\n// Pid is used by all.\nfunc Pid() int { return os.Getpid() }\n",
		"m_windows.go":      "package m\n\nfunc handle() string { return Pid() }\n",
		"m_windows_test.go": "package m\n\nimport \"testing\"\n\nfunc TestPid(t *testing.T) { t.Missing() }\n",
		"in/in.go":          "package in\n\nimport \"example.org/m\"\n\nvar _ = m.Pid()\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}

	faults, err := check(dir, "darwin")
	require.NoError(t, err)
	assert.Empty(t, faults)

	faults, err = check(dir, "windows")
	require.NoError(t, err)
	var texts []string
	for _, fault := range faults {
		texts = append(texts, fault.Error())
	}
	assert.Equal(t, []string{
		filepath.Join(dir, "m_windows.go") + ":3:31: cannot use Pid() (value of type int) as string value in return statement",
		filepath.Join(dir, "m_windows_test.go") + ":5:32: t.Missing undefined (type *testing.T has no field or method Missing)",
	}, texts)
}
