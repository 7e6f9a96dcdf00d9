package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/internal/servertest"
)

func TestMain(m *testing.M) { os.Exit(servertest.Main(m)) }

func TestEachPieceIsSoldOnce(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]func(servertest.TB) *servertest.Server{
		"MariaDB": servertest.SharedMariaDB, "MySQL": servertest.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			require.NoError(t, run(t.Context(), servertest.MySQLDSN(shared(t)), fmt.Sprintf("sale_%d", os.Getpid()), &out))
			assert.Equal(t, `version column: 40 pieces, 40 sold, 0 left
lock table and Guarded: 40 pieces, 40 sold, 0 left
row lock and InTx: 40 pieces, 40 sold, 0 left
`, out.String())
		})
	}
}
