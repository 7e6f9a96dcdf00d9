package servertest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestURLAt(t *testing.T) {
	t.Parallel()
	s := &Server{kind: mariadbKind, addr: "127.0.0.1:1", password: "p@ss/word"}
	require.Equal(t, "mysql://mortise:p%40ss%2Fword@127.0.0.1:1/mortise", s.URL())
	require.Equal(t, "mysql://mortise:p%40ss%2Fword@10.0.0.1:2/mortise", s.URLAt("10.0.0.1:2"))
	require.Equal(t, "mortise:p@ss/word@tcp(127.0.0.1:1)/mortise", MySQLDSN(s))
	require.Equal(t, "root:p@ss/word@tcp(127.0.0.1:1)/mortise", MySQLAdminDSN(s))
}
