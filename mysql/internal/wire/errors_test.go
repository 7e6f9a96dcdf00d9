package wire

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
)

func serverError(code uint16) error {
	return &mysql.MySQLError{Number: code, Message: "text of the server"}
}

func TestSentinels(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	read := &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
	cases := []struct {
		name string
		err  error
		want error // nil: the outcome is unknown
	}{
		{"too many connections", serverError(1040), backend.ErrUnavailable},
		{"too many connections of the user", serverError(1203), backend.ErrUnavailable},
		{"access to the database denied", serverError(1044), backend.ErrPermanent},
		{"wrong password", serverError(1045), backend.ErrPermanent},
		{"unknown database", serverError(1049), backend.ErrPermanent},
		{"unknown column", serverError(1054), backend.ErrPermanent},
		{"duplicate key", serverError(1062), nil},
		{"access to the table denied", serverError(1142), backend.ErrPermanent},
		{"access to a column denied", serverError(1143), backend.ErrPermanent},
		{"no such table", serverError(1146), backend.ErrPermanent},
		{"lock wait timeout", serverError(1205), backend.ErrUnavailable},
		{"deadlock", serverError(1213), backend.ErrUnavailable},
		{"read-only server", serverError(1290), backend.ErrUnavailable},
		{"KILL QUERY", serverError(1317), backend.ErrUnavailable},
		{"column without a default", serverError(1364), backend.ErrPermanent},
		{"read-only transaction", serverError(1792), backend.ErrUnavailable},
		{"read-only engine", serverError(1836), backend.ErrUnavailable},
		{"connection killed", serverError(1927), nil},
		{"lock not available at once", serverError(3572), backend.ErrUnavailable},
		{"disconnected for inactivity", serverError(4031), backend.ErrUnavailable},
		{"Galera node not ready", serverError(1047), backend.ErrUnavailable},
		{"shutting down", serverError(1053), backend.ErrUnavailable},
		{"any other error of the server", serverError(1105), nil},
		{"any other error while connecting", Unsent(serverError(1105)), backend.ErrUnavailable},
		{"wrong password while connecting", Unsent(serverError(1045)), backend.ErrPermanent},
		{"connection lost", mysql.ErrInvalidConn, nil},
		{"connection lost while connecting", Unsent(mysql.ErrInvalidConn), backend.ErrUnavailable},
		{"nothing was written", driver.ErrBadConn, backend.ErrUnavailable},
		{"connection refused", dial, backend.ErrUnavailable},
		{"connection reset", read, nil},
		{"end of file", io.EOF, nil},
		{"no TLS", mysql.ErrNoTLS, backend.ErrPermanent},
		{"statement too long", mysql.ErrPktTooLarge, backend.ErrPermanent},
		{"pool closed", errors.New("sql: database is closed"), backend.ErrPermanent},
		{"connection closed", sql.ErrConnDone, backend.ErrPermanent},
		{"cancelled", context.Canceled, nil},
		{"cancelled while waiting for a connection", Unsent(context.Canceled), backend.ErrUnavailable},
	}
	for _, c := range cases {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			assert.Equal(t, c.want, Sentinel(err), c.name)
			described := KeyError(t.Context(), "k", err)
			assert.ErrorIs(t, described, c.err, c.name)
			for _, sentinel := range []error{backend.ErrUnavailable, backend.ErrPermanent} {
				assert.Equal(t, sentinel == c.want, errors.Is(described, sentinel), "%s: %v", c.name, described)
			}
		}
	}
}

// A list of codes with a number in both would say two things.
func TestCodesAreOneOrTheOther(t *testing.T) {
	t.Parallel()
	for code := range transientCodes {
		assert.False(t, permanentCodes[code], "%d", code)
	}
}

func TestWorthRepeating(t *testing.T) {
	t.Parallel()
	for code, want := range map[uint16]bool{1213: true, 1205: true, 1020: true, 3101: true, 1062: false, 1317: false, 3572: false} {
		assert.Equal(t, want, WorthRepeating(fmt.Errorf("wrapped: %w", serverError(code))), "%d", code)
	}
	assert.False(t, WorthRepeating(mysql.ErrInvalidConn))
}

func TestHints(t *testing.T) {
	t.Parallel()
	for text, err := range map[string]error{
		"check user and password": serverError(1045),
		"existing database":       serverError(1049),
		"SELECT, INSERT and":      serverError(1142),
		"primary":                 serverError(1290),
		"make the pool larger":    Unsent(context.DeadlineExceeded),
		"before the Locker":       errors.New("sql: database is closed"),
		"max_connections":         serverError(1040),
	} {
		assert.ErrorContains(t, KeyError(t.Context(), "k", err), text)
	}
}

// What a context caused matches the context, whatever the driver made of it.
func TestContextErrors(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := KeyError(ctx, "k", mysql.ErrInvalidConn)
	assert.ErrorIs(t, err, context.Canceled)
	assert.NotErrorIs(t, err, backend.ErrUnavailable)
	assert.ErrorIs(t, OpenError(t.Context(), mysql.ErrInvalidConn), backend.ErrUnavailable)
	assert.ErrorIs(t, OpenError(t.Context(), serverError(1045)), backend.ErrPermanent)
}
