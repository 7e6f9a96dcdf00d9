package row

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// statements are the statements of the row locks. Values stand in them as numbers
// and hexadecimal literals, so that nothing has to be prepared or escaped.
type statements struct {
	rows, holders string // quoted table names
	schemaName    string // of the tables, or empty for the connection's database
	rowsName      string

	shared    string // after a query: to wait for who changes the row
	lockShare string // after row: to look whether it is locked
	mariaDB   bool
}

func newStatements(table string) (statements, error) {
	if err := wire.CheckTable(table); err != nil {
		return statements{}, err
	}
	holders := table + "_holders"
	if err := wire.CheckTable(holders); err != nil {
		return statements{}, fmt.Errorf("mysqllock: %w: the table's name with _holders added is too long", backend.ErrInvalid)
	}
	st := statements{rows: wire.Quote(table), holders: wire.Quote(holders), rowsName: table}
	if schema, name, ok := strings.Cut(table, "."); ok {
		st.schemaName, st.rowsName = schema, name
	}
	return st, nil
}

// setServer chooses what MySQL and MariaDB write differently.
func (st *statements) setServer(mariaDB bool) {
	st.mariaDB = mariaDB
	st.shared = " FOR SHARE"
	if mariaDB {
		st.shared = " LOCK IN SHARE MODE"
	}
	st.lockShare = st.shared + " NOWAIT"
}

// literal is a string of bytes as statements have it.
func literal(s string) string {
	if s == "" {
		return "''"
	}
	return "x'" + hex.EncodeToString([]byte(s)) + "'"
}

func (st *statements) row(key string) string {
	return "SELECT 1 FROM " + st.rows + " WHERE k = " + literal(key)
}

const utcMicros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"

// largestToken is the last one that is granted, as in every backend: from 2^53 on, floating point
// numbers no longer tell neighbours apart.
const largestToken = 1<<53 - 1

// raise writes the next token and who has it, if that session lives and the server takes
// writes. The last insert id is twice the token, and one more where the token before it was
// last: see [raised]. The server floors it with its clock and with the record's floor, which is
// that of [Backend.RaiseFloor]: a hold keeps its token.
func (st *statements) raise(key string, s *session, last uint64, ttl time.Duration, h backend.Holder) string {
	var q strings.Builder
	q.Grow(512)
	q.WriteString("UPDATE " + st.holders + " SET token = LAST_INSERT_ID(GREATEST(token + 1, floor + 1, " + utcMicros + ") * 2 + (token = ")
	q.WriteString(strconv.FormatUint(last, 10))
	q.WriteString(")) DIV 2, since = UTC_TIMESTAMP(6), connection = ")
	q.WriteString(strconv.FormatUint(s.id, 10))
	q.WriteString(", session = '" + s.mark + "', ttl = ")
	q.WriteString(strconv.FormatInt(int64(ttl/time.Second), 10))
	q.WriteString(", label = " + literal(h.Label) + ", host = " + literal(cut(h.Host, 255)) + ", pair = " + literal(cut(h.PairID, 32)) + ", pid = ")
	q.WriteString(strconv.Itoa(max(h.PID, 0)))
	q.WriteString(" WHERE k = " + literal(key) + " AND token < " + strconv.FormatUint(largestToken, 10))
	q.WriteString(" AND " + s.lives() + " AND " + wire.Writable)
	return q.String()
}

// raised is what the last insert id of raise and raiseFirst says: the token, and whether no
// other was written since the last one that the backend knows.
func raised(id int64) (token uint64, next bool) { return uint64(id) / 2, id%2 == 1 }

func (st *statements) lastToken(key string) string {
	return "SELECT token, " + wire.Writable + " FROM " + st.holders + " WHERE k = " + literal(key)
}

// insertRow makes the row of a key in the first table, if it is missing. The look for it locks
// nothing under READ COMMITTED.
func (st *statements) insertRow(key string) string {
	return "INSERT IGNORE INTO " + st.rows + " (k) SELECT " + literal(key) + " FROM DUAL WHERE NOT EXISTS (" + st.row(key) + ")"
}

// floorKey is the record whose floor is that of keys without a record. No key of a user has
// a control character.
const floorKey = "\x00"

// raiseFirst is raise for a key that has no row in the second table, and makes it. The record
// of the floor is read with a lock, so that who raises the floor at the same time waits for the
// row, or is seen.
func (st *statements) raiseFirst(key string, s *session, ttl time.Duration, h backend.Holder) string {
	return "INSERT INTO " + st.holders + " (k, token, revoked, connection, session, ttl, since, label, host, pair, pid) SELECT " + literal(key) +
		", LAST_INSERT_ID(GREATEST(COALESCE(MAX(floor), 0) + 1, " + utcMicros + ") * 2) DIV 2, 0, " + strconv.FormatUint(s.id, 10) + ", '" + s.mark + "', " +
		strconv.FormatInt(int64(ttl/time.Second), 10) + ", UTC_TIMESTAMP(6), " + literal(h.Label) + ", " + literal(cut(h.Host, 255)) + ", " + literal(cut(h.PairID, 32)) + ", " +
		strconv.Itoa(max(h.PID, 0)) + " FROM " + st.holders + " WHERE k = " + literal(floorKey) +
		" HAVING " + s.lives() + " AND " + wire.Writable + st.shared
}

// lives is the condition that the server has the session.
func (s *session) lives() string {
	return "IS_USED_LOCK('" + s.mark + "') = " + strconv.FormatUint(s.id, 10)
}

// isThis asks whether the connection is the session's own.
func (s *session) isThis() string {
	return "SELECT CONNECTION_ID() = " + strconv.FormatUint(s.id, 10) + " AND " + s.lives()
}

// markUser is the connection that has the mark of the session at present. The first
// grant of a key has its row before its session, and MySQL refuses an empty name.
const markUser = "IF(session = '', NULL, IS_USED_LOCK(session))"

// record reads what raise has written, and the connection that has the session's
// mark at present.
func (st *statements) record(key string) string {
	return "SELECT token, revoked, connection, session, " + markUser + ", ttl, TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', since), label, host, pair, pid FROM " +
		st.holders + " WHERE k = " + literal(key)
}

// revoke writes that the holder with the token is to learn that its hold is over.
func (st *statements) revoke(key string, token uint64) string {
	n := strconv.FormatUint(token, 10)
	return "UPDATE " + st.holders + " SET revoked = " + n + " WHERE k = " + literal(key) + " AND token = " + n
}

// lengthen writes the longer TTL of the hold with the token.
func (st *statements) lengthen(key string, token uint64, ttl time.Duration) string {
	return "UPDATE " + st.holders + " SET ttl = " + seconds(ttl) + " WHERE k = " + literal(key) + " AND token = " + strconv.FormatUint(token, 10)
}

// isRevoked has a row if revoke was sent for the token.
func (st *statements) isRevoked(key string, token uint64) string {
	return "SELECT 1 FROM " + st.holders + " WHERE k = " + literal(key) + " AND revoked = " + strconv.FormatUint(token, 10)
}

// What holdState returns.
const (
	stateGood    = "0"
	stateRevoked = "1"
)

// holdState tells whether the hold was revoked, and whether the server takes writes:
// anything but the two states above means that it does not.
func (st *statements) holdState(key string, token uint64) string {
	return "SELECT IF(" + wire.Writable + ", 0, 2) + EXISTS (" + st.isRevoked(key, token) + ")"
}

func cut(s string, n int) string { return s[:min(len(s), n)] }

// holderColumns are those of the second table. The text of the default is for columns
// that are added to a table with rows.
var holderColumns = []struct {
	name, kind, missing string
	newer               bool // tables of earlier versions don't have it
}{
	{name: "k", kind: "VARBINARY(512) NOT NULL PRIMARY KEY"},
	{name: "token", kind: "BIGINT UNSIGNED NOT NULL", missing: "0"},
	// The default is for the rows that earlier versions make.
	{name: "revoked", kind: "BIGINT UNSIGNED NOT NULL DEFAULT 0", newer: true},
	{name: "floor", kind: "BIGINT UNSIGNED NOT NULL DEFAULT 0", newer: true},
	{name: "connection", kind: "BIGINT UNSIGNED NOT NULL", missing: "0"},
	{name: "session", kind: "VARBINARY(64) NOT NULL", missing: "''"},
	{name: "ttl", kind: "INT UNSIGNED NOT NULL", missing: "0"},
	{name: "since", kind: "DATETIME(6) NOT NULL", missing: "'1970-01-01 00:00:00'"},
	{name: "label", kind: "VARBINARY(256) NOT NULL", missing: "''"},
	{name: "host", kind: "VARBINARY(255) NOT NULL", missing: "''"},
	{name: "pair", kind: "VARBINARY(32) NOT NULL DEFAULT ''", newer: true},
	{name: "pid", kind: "BIGINT UNSIGNED NOT NULL", missing: "0"},
}

// ddl creates both tables.
func (st *statements) ddl() []string {
	var columns []string
	for _, c := range holderColumns {
		columns = append(columns, "  "+c.name+" "+c.kind)
	}
	return []string{
		"CREATE TABLE IF NOT EXISTS " + st.rows + ` (
  k VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE=InnoDB COMMENT='rows that are locked; never delete one in use'`,
		"CREATE TABLE IF NOT EXISTS " + st.holders + " (\n" + strings.Join(columns, ",\n") + `
) ENGINE=InnoDB COMMENT='fencing tokens, and the last holder of each row'`,
	}
}

// addColumns adds the columns that the second table does not have, and reports whether
// it is one that an earlier version has made. It is empty when nothing is missing, and
// when the table has no keys either.
func (st *statements) addColumns(has map[string]bool) (alter string, older bool) {
	older = true
	var add []string
	for _, c := range holderColumns {
		if has[c.name] {
			continue
		}
		if c.name == "k" {
			return "", false
		}
		column := "ADD COLUMN " + c.name + " " + c.kind
		if c.missing != "" {
			column += " DEFAULT " + c.missing
		}
		add = append(add, column)
		older = older && c.newer
	}
	if len(add) == 0 {
		return "", false
	}
	return "ALTER TABLE " + st.holders + " " + strings.Join(add, ", "), older
}
