package mysqllock

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/internal/servertest"
)

// The run fails if a goroutine is left when every test has closed what it
// opened.
func TestMain(m *testing.M) {
	secondProcess()
	conformance.Child(childConformance)
	goleak.VerifyTestMain(servertest.StopAfter(m))
}

// childConfigs makes the Configs of the suite again in the processes that it
// starts, by the first word of Config.Child. Each form adds its own in an init.
var childConfigs = map[string]func(rest string) conformance.Config{}

func childConformance(child string) conformance.Config {
	word, rest, _ := strings.Cut(child, " ")
	make, ok := childConfigs[word]
	if !ok {
		panic(fmt.Sprintf("no Config is called %q", word))
	}
	return make(rest)
}

// lockerOn is a Locker on a table.
func lockerOn(t testing.TB, db *sql.DB) *lock.Client {
	t.Helper()
	l, err := NewTable(t.Context(), db, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}
