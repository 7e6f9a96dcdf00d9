package row

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/mysqltest"
)

type virtualRow struct{ *Backend }

func (virtualRow) Clock() backend.Clock { return backend.RuntimeClock() }

func exhaustedRow(t *testing.T) backend.Backend {
	statements, err := newStatements(defaultTable)
	require.NoError(t, err)
	b := &Backend{
		statements: statements, clock: backend.RuntimeClock(), control: sql.OpenDB(mysqltest.IdleConnector{}), holds: map[backend.ID]*hold{},
	}
	b.life, b.endLife = context.WithCancel(t.Context())
	b.sessions = newSessions(mysqltest.IdleConnector{}, 1, true, b.clock)
	require.NoError(t, b.sessions.takeSlot(t.Context()))
	return virtualRow{b}
}

func TestRowExhaustedPoolIsNoUnknownOutcome(t *testing.T) {
	t.Parallel()
	mysqltest.Exhausted(t, exhaustedRow)
}
