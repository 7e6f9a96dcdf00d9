package backend_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

func TestTLSConfig(t *testing.T) {
	t.Parallel()
	cfg, err := backend.TLSConfig("", "", "")
	require.NoError(t, err)
	assert.Nil(t, cfg.RootCAs, "the system's authorities")
	assert.False(t, cfg.InsecureSkipVerify)
	words := filepath.Join(t.TempDir(), "words.pem")
	require.NoError(t, os.WriteFile(words, []byte("no certificate"), 0o600))
	for text, files := range map[string][3]string{
		`parameter "ca": open /not/there`:        {"/not/there"},
		"words.pem has no PEM certificate":       {words},
		"cert and key are given together":        {"", words},
		`parameters "cert" and "key": tls: fail`: {"", words, words},
	} {
		_, err := backend.TLSConfig(files[0], files[1], files[2])
		require.ErrorIs(t, err, backend.ErrInvalid)
		assert.ErrorContains(t, err, text)
	}
}
