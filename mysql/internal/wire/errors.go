// Package wire is what the lock table and the row locks share: connections and their
// settings, the URL, and what the errors of the server and of the driver mean.
package wire

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
)

// Numbers of server errors that mean something of their own to this package.
// MySQL and MariaDB share the numbers below 1900.
const (
	codeTooManyConnections = 1040
	codeDatabaseDenied     = 1044
	codeAccessDenied       = 1045
	CodeUnknownDatabase    = 1049
	CodeTableExists        = 1050
	CodeUnknownColumn      = 1054
	CodeDuplicate          = 1062
	CodeNotUnderstood      = 1064
	CodeTableDenied        = 1142
	CodeColumnDenied       = 1143
	CodeNoSuchTable        = 1146
	CodeLockWaitTimeout    = 1205
	CodeDeadlock           = 1213
	codeReadOnlyOption     = 1290
	CodeNoSavepoint        = 1305 // also of a procedure that does not exist
	codeInterrupted        = 1317
	codeStatementBinlog    = 1665
	codeReadOnlyTx         = 1792
	codeReadOnlyMode       = 1836
	CodeLockNowait         = 3572 // MySQL only; MariaDB answers NOWAIT with 1205
	CodeInactivity         = 4031
)

// transientCodes are refusals that time can cure. The statement had no effect,
// and its transaction has not been committed.
var transientCodes = codes(
	codeTooManyConnections, 1203, 1226, // connections and resources of the account
	CodeLockWaitTimeout, CodeDeadlock, CodeLockNowait,
	codeReadOnlyOption, codeReadOnlyTx, codeReadOnlyMode, 1036, 1223,
	codeInterrupted, 1969, 3024, // KILL QUERY and limits on the time of a statement
	CodeInactivity,
	1020, 1412, // somebody else changed the row or the table at the same time
	1021, 1028, 1037, 1038, 1041, 1114, 1135, 1206, 1637, // disk, memory, threads, locks, transactions
	1047, 3101, // Galera: not ready; group replication: rolled back
	1053, 1129, 3032, 3168, // shutting down, host blocked, offline, not available
)

// permanentCodes are refusals that waiting does not cure.
var permanentCodes = codes(
	codeDatabaseDenied, codeAccessDenied, CodeUnknownDatabase, CodeUnknownColumn,
	CodeTableDenied, CodeColumnDenied, CodeNoSuchTable,
	1046,                                                 // no database selected
	CodeNotUnderstood, 1136, 1235, CodeNoSavepoint, 1193, // statements
	1130, 1227, 1251, 1524, 1698, 1820, 1862, 3118, 3159, 4151, // the account
	1103, 1288, 1347, 1364, // a table or a view that is not ours
	1264, 1366, 1406, 1690, // values that don't fit their columns
	1286, codeStatementBinlog,
	1231, 1232, // variables
)

func codes(list ...uint16) map[uint16]bool {
	m := make(map[uint16]bool, len(list))
	for _, c := range list {
		m[c] = true
	}
	return m
}

// permanentErrors are the driver's own refusals to go on.
var permanentErrors = []error{
	mysql.ErrNoTLS, mysql.ErrCleartextPassword, mysql.ErrNativePassword, mysql.ErrOldPassword,
	mysql.ErrUnknownPlugin, mysql.ErrOldProtocol, mysql.ErrPktTooLarge,
}

// CodeOf is the number of the server's error, or 0 when it is none.
func CodeOf(err error) uint16 {
	var refusal *mysql.MySQLError
	if errors.As(err, &refusal) {
		return refusal.Number
	}
	return 0
}

// IsReadOnly reports that the server takes no writes, or none any more: after a planned
// switchover its address leads elsewhere, while the connections to it stay open.
func IsReadOnly(err error) bool {
	switch CodeOf(err) {
	case codeReadOnlyOption, codeReadOnlyTx, codeReadOnlyMode:
		return true
	}
	return errors.Is(err, ErrReadOnly)
}

// Writable is true on a server that takes writes of everybody. An account that may write
// all the same on another one is told nothing by the server. On some versions of MariaDB
// read_only is a word; on MySQL super_read_only implies it.
const Writable = "(CONCAT(@@GLOBAL.read_only) IN ('0', 'OFF'))"

// ErrReadOnly is what is found on a server that became read-only.
var ErrReadOnly = errors.New("the server has become read-only, as the old primary does in a switchover")

// WorthRepeating reports that the whole transaction was rolled back, or did
// nothing, because of what others did at the same time: the same step can be
// taken again. After 1205 the transaction must be rolled back first.
func WorthRepeating(err error) bool {
	switch CodeOf(err) {
	case CodeDeadlock, CodeLockWaitTimeout, 1020, 1412, 3101:
		return true
	}
	return false
}

// Unsent marks an error that came before anything was sent.
func Unsent(err error) error { return unsentError{err} }

type unsentError struct{ err error }

func (u unsentError) Error() string { return u.err.Error() }
func (u unsentError) Unwrap() error { return u.err }

// NoConnection is why nothing was sent, with what to do where a connection took too long.
func NoConnection(err error, hint string) error { return Unsent(noConnectionError{err, hint}) }

type noConnectionError struct {
	err  error
	hint string
}

func (n noConnectionError) Error() string { return n.err.Error() }
func (n noConnectionError) Unwrap() error { return n.err }

// Sentinel returns ErrUnavailable or ErrPermanent for an error that promises
// that nothing was changed, and nil for every other.
func Sentinel(err error) error {
	if code := CodeOf(err); code != 0 {
		switch {
		case transientCodes[code]:
			return backend.ErrUnavailable
		case permanentCodes[code]:
			return backend.ErrPermanent
		}
		return unsentSentinel(err)
	}
	for _, p := range permanentErrors {
		if errors.Is(err, p) {
			return backend.ErrPermanent
		}
	}
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &certificate), databaseClosed(err):
		return backend.ErrPermanent
	// The driver and database/sql return ErrBadConn only for what was not sent.
	case errors.Is(err, driver.ErrBadConn), failure.DialFailed(err), errors.Is(err, ErrReadOnly):
		return backend.ErrUnavailable
	}
	return unsentSentinel(err)
}

func unsentSentinel(err error) error {
	var u unsentError
	if errors.As(err, &u) {
		return backend.ErrUnavailable
	}
	return nil
}

// databaseClosed reports that the pool was closed by its owner. database/sql does
// not export that error.
func databaseClosed(err error) bool {
	return errors.Is(err, sql.ErrConnDone) || PoolClosed(err)
}

// PoolClosed reports that the pool was closed by its owner.
func PoolClosed(err error) bool { return strings.Contains(err.Error(), "sql: database is closed") }

// KeyError is the error of an operation on a key.
func KeyError(ctx context.Context, key string, err error) error {
	return failure.OfKey("mysqllock", key, Describe(ctx, err))
}

// OpenError is the error of a request of the opening. None of them changes
// anything that matters, so that what is not a refusal for good is "unavailable".
func OpenError(ctx context.Context, err error) error {
	err = Describe(ctx, err)
	for _, known := range []error{backend.ErrPermanent, backend.ErrUnavailable, backend.ErrInvalid, backend.ErrUnsupported} {
		if errors.Is(err, known) {
			return fmt.Errorf("mysqllock: open: %w", err)
		}
	}
	return fmt.Errorf("mysqllock: open: %w: %w; check that a MySQL or MariaDB server answers at this address", backend.ErrUnavailable, err)
}

// NotHeld says that there is no such hold.
func NotHeld(key string) error { return failure.NotHeld("mysqllock", key) }

// Describe marks the error with its sentinel, adds what to do about it, and makes
// a timeout match the context that caused it. Errors that are marked already stay
// as they are.
func Describe(ctx context.Context, err error) error {
	if errors.Is(err, backend.ErrPermanent) || errors.Is(err, backend.ErrUnavailable) {
		return failure.Describe(ctx, err, nil, "")
	}
	return failure.Describe(ctx, err, Sentinel(err), hintFor(err))
}

func hintFor(err error) string {
	switch CodeOf(err) {
	case codeAccessDenied, 1698:
		return "; check user and password, and the client's certificate where the account requires one"
	case codeDatabaseDenied, CodeUnknownDatabase:
		return "; check the name of the database and the rights of the user: the locks need an existing database"
	case 1046:
		return "; name a database, as in mysql://user:password@host/database"
	case CodeTableDenied, CodeColumnDenied:
		return "; the user needs SELECT, INSERT and UPDATE on the table (DELETE for Cleanup)"
	case CodeNoSuchTable, CodeUnknownColumn, 1364:
		return "; the table was dropped or altered: open the Locker again to create it or to see its DDL"
	case codeStatementBinlog:
		return "; set binlog_format to ROW or MIXED, for the server or for the session"
	case codeReadOnlyOption, codeReadOnlyTx, codeReadOnlyMode:
		return "; the server, or the session, is read-only: use the address of the primary"
	case codeTooManyConnections, 1203:
		return "; raise max_connections or make the pools smaller"
	case CodeLockWaitTimeout, CodeDeadlock:
		return "; somebody else has locked the row for long"
	case 0:
	default:
		return ""
	}
	var u unsentError
	var n noConnectionError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, ErrReadOnly):
		return "; use the address of the primary"
	case errors.As(err, &certificate):
		return "; check ca, and the name in the server's certificate"
	case databaseClosed(err):
		return "; the pool was closed before the Locker"
	case errors.As(err, &n) && errors.Is(err, context.DeadlineExceeded):
		return n.hint
	case errors.As(err, &u) && errors.Is(err, context.DeadlineExceeded):
		return "; no connection came free or could be made in time: make the pool larger (pool_size, or SetMaxOpenConns) or check the address"
	}
	return ""
}

// ErrNoPrefix refuses to forget every key.
var ErrNoPrefix = fmt.Errorf("mysqllock: %w: an empty prefix would forget the tokens of every key", backend.ErrInvalid)

// TooYoung refuses a clean-up of rows in use.
func TooYoung(olderThan time.Duration) error {
	return fmt.Errorf("mysqllock: clean-up: %w: rows older than %s; it must be positive", backend.ErrInvalid, olderThan)
}
