package row

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// prepare checks the server's settings and the tables, which it creates if allowed. For
// who only looks they may be missing.
// It reports whether the server is a MariaDB.
func (b *Backend) prepare(ctx context.Context, create, lookOnly bool, logger *slog.Logger) (mariaDB bool, err error) {
	conn, err := b.controlConn(ctx)
	if err != nil {
		return false, wire.OpenError(ctx, err)
	}
	vars, err := wire.Variables(ctx, conn, "version", "wsrep_on", "innodb_flush_log_at_trx_commit",
		"read_only", "log_bin", "sql_log_bin", "binlog_format", "group_replication_single_primary_mode", "group_replication_group_name")
	closeConn(conn, err)
	if err != nil {
		return false, wire.OpenError(ctx, err)
	}
	mariaDB, err = checkServer(vars)
	if err != nil {
		return false, err
	}
	if !wire.FlushesCommits(vars) {
		logger.WarnContext(ctx, "mysqllock: the server does not write its log to the disk at every commit: after a crash it may give a fencing token again, unless its clock has gone on; set innodb_flush_log_at_trx_commit to 1")
	}
	if lookOnly && wire.CodeOf(b.probeTables(ctx)) == wire.CodeNoSuchTable {
		wire.WarnOfMissing(ctx, logger, b.rowsName)
		return mariaDB, nil
	}
	if err := b.checkTables(ctx, create); err != nil || lookOnly {
		return mariaDB, err
	}
	if _, err := b.changeOnControl(ctx, b.insertFloor()); err != nil {
		return mariaDB, wire.OpenError(ctx, err)
	}
	return mariaDB, nil
}

// checkServer refuses servers on which a row lock does not exclude, or cannot be
// asked for without waiting.
func checkServer(vars map[string]string) (mariaDB bool, err error) {
	version := vars["version"]
	mariaDB = strings.Contains(strings.ToLower(version), "mariadb")
	major, minor, patch := versionNumbers(version)
	switch {
	case wire.IsOn(vars["wsrep_on"]):
		err = errors.New("the server belongs to a Galera cluster (wsrep_on), where FOR UPDATE excludes only on one node; use mode=table with all writes on one node")
	case wire.ManyPrimaries(vars):
		err = errors.New("the server belongs to a group with several primaries, where FOR UPDATE excludes only on one of them; use mode=table with all writes on one of them")
	case mariaDB && (major < 10 || major == 10 && minor < 3):
		err = fmt.Errorf("MariaDB %s has no NOWAIT; row locks need 10.3, better 10.11 or later", version)
	case !mariaDB && (major < 8 || major == 8 && minor == 0 && patch < 1):
		err = fmt.Errorf("MySQL %s has no NOWAIT; row locks need 8.0.1, better 8.4 or later", version)
	}
	if err != nil {
		return mariaDB, fmt.Errorf("mysqllock: %w: %w", backend.ErrUnsupported, err)
	}
	if wire.IsOn(vars["log_bin"]) && vars["sql_log_bin"] != "OFF" && strings.EqualFold(vars["binlog_format"], "STATEMENT") {
		return mariaDB, fmt.Errorf("mysqllock: open: %w: binlog_format is STATEMENT, with which the server refuses to lock rows under READ COMMITTED; set it to ROW or MIXED", backend.ErrPermanent)
	}
	if ro := vars["read_only"]; ro != "" && ro != "0" && !strings.EqualFold(ro, "OFF") {
		return mariaDB, fmt.Errorf("mysqllock: open: %w: the server is read-only, and a row that is locked there is locked for nobody on the primary: use the address of the primary", backend.ErrUnavailable)
	}
	return mariaDB, nil
}

func versionNumbers(version string) (major, minor, patch int) {
	var n [3]int
	rest := strings.TrimPrefix(version, "5.5.5-") // what MariaDB tells old clients
	for i := range n {
		end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(rest)
		}
		n[i], _ = strconv.Atoi(rest[:end])
		if end >= len(rest) || rest[end] != '.' {
			break
		}
		rest = rest[end+1:]
	}
	return n[0], n[1], n[2]
}

// checkTables looks at the tables, and creates them first where they are missing, or
// brings one of an earlier version up to date.
func (b *Backend) checkTables(ctx context.Context, create bool) error {
	missing := b.probeTables(ctx)
	if wire.CodeOf(missing) == wire.CodeNoSuchTable && create {
		for _, q := range b.ddl() {
			if _, err := b.control.ExecContext(ctx, q); err != nil && wire.CodeOf(err) != wire.CodeTableExists {
				return b.withDDL(wire.OpenError(ctx, err))
			}
		}
		missing = b.probeTables(ctx)
	}
	if wire.CodeOf(missing) == wire.CodeUnknownColumn {
		if err := b.checkHolderColumns(ctx, create); err != nil {
			return err
		}
		missing = b.probeTables(ctx)
	}
	if missing != nil {
		err := wire.OpenError(ctx, missing)
		if errors.Is(err, backend.ErrPermanent) {
			err = b.withDDL(err)
		}
		return err
	}
	return b.checkEngine(ctx)
}

func (b *Backend) withDDL(err error) error {
	return fmt.Errorf("%w\nthe row locks need SELECT, INSERT and UPDATE on these tables:\n%s;", err, strings.Join(b.ddl(), ";\n"))
}

// alterWait bounds the wait of an ALTER TABLE for those who use the table: whoever comes
// after it waits for it.
const alterWait = 3 * time.Second

// checkHolderColumns adds the columns that a table of an earlier version does not have,
// if it may, and otherwise says how to.
func (b *Backend) checkHolderColumns(ctx context.Context, create bool) error {
	conn, err := b.controlConn(ctx)
	if err != nil {
		return wire.OpenError(ctx, err)
	}
	defer closeConn(conn, errNotReused)
	has, err := columnsOf(ctx, conn, b.holders)
	if err != nil {
		return wire.OpenError(ctx, err)
	}
	alter, older := b.addColumns(has)
	if alter == "" {
		return nil // another column, or not our table: the probe says which
	}
	err = fmt.Errorf("%w: the table %s lacks columns", backend.ErrPermanent, b.rowsName+"_holders")
	if create && older {
		_, err = conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = "+seconds(alterWait))
		if err == nil {
			_, err = conn.ExecContext(ctx, alter)
		}
		if err == nil || wire.CodeOf(err) == codeDuplicateColumn { // somebody else was first
			return nil
		}
	}
	return fmt.Errorf("%w\nthis statement adds what the row locks need:\n%s;", wire.OpenError(ctx, err), alter)
}

const codeDuplicateColumn = 1060

// errNotReused has a connection closed whose session was changed.
var errNotReused = errors.New("not reused")

// columnsOf are the names of the columns of a table, in lower case.
func columnsOf(ctx context.Context, conn *sql.Conn, table string) (map[string]bool, error) {
	rows, err := conn.QueryContext(ctx, "SELECT * FROM "+table+" LIMIT 0")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, name := range names {
		has[strings.ToLower(name)] = true
	}
	return has, rows.Err()
}

// probeTables reads every column, and needs the rights that the locks need.
func (b *Backend) probeTables(ctx context.Context) error {
	var columns []string
	for _, c := range holderColumns {
		columns = append(columns, c.name)
	}
	for _, q := range []string{
		"SELECT k FROM " + b.rows + " WHERE k = '' FOR UPDATE",
		"SELECT " + strings.Join(columns, ", ") + " FROM " + b.holders + " WHERE k = '' FOR UPDATE",
	} {
		rows, err := b.control.QueryContext(ctx, q)
		if err != nil {
			return err
		}
		if err := rows.Close(); err != nil {
			return err
		}
	}
	return nil
}

// checkEngine refuses tables without row locks.
func (b *Backend) checkEngine(ctx context.Context) error {
	schema := "DATABASE()"
	if b.schemaName != "" {
		schema = literal(b.schemaName)
	}
	for _, table := range []string{b.rowsName, b.rowsName + "_holders"} {
		var engine sql.NullString
		err := b.control.QueryRowContext(ctx, "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = CONVERT("+schema+" USING utf8mb4) AND TABLE_NAME = CONVERT("+literal(table)+" USING utf8mb4)").Scan(&engine)
		switch {
		case errors.Is(err, sql.ErrNoRows): // lower_case_table_names: not worth a refusal
		case err != nil:
			return wire.OpenError(ctx, err)
		case !strings.EqualFold(engine.String, "InnoDB"):
			return fmt.Errorf("mysqllock: open: %w: the table %s has the engine %s, which has no row locks; use ALTER TABLE %s ENGINE=InnoDB",
				backend.ErrPermanent, table, engine.String, table)
		}
	}
	return nil
}

// create makes the row of a key, by a statement that is committed on its own. An insert that
// meets a row waits for whoever has it locked, so that none is sent where there is one.
func (b *Backend) create(ctx context.Context, key string) error {
	_, err := b.changeOnControl(ctx, b.insertRow(key))
	return err
}

// controlConn is a connection of the control pool.
func (b *Backend) controlConn(ctx context.Context) (*sql.Conn, error) {
	conn, err := b.control.Conn(ctx)
	if err != nil {
		return nil, wire.NoConnection(err, "; no connection came free or could be made in time: check whether the server answers, or make ControlPoolSize larger")
	}
	return conn, nil
}

// briefIdle is how long a transaction on a connection of the control pool may be
// without a statement before the server ends it.
const briefIdle = 2 * time.Second

// briefConn is one for a transaction. What it has locked is free soon when its client
// dies or is cut off without a sign. It is not given back to the pool.
func (b *Backend) briefConn(ctx context.Context) (*sql.Conn, error) {
	conn, err := b.controlConn(ctx)
	if err != nil {
		return nil, err
	}
	limit := seconds(briefIdle)
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = "+limit+", innodb_lock_wait_timeout = "+limit+", lock_wait_timeout = "+limit); err != nil {
		closeConn(conn, errNotReused)
		return nil, err
	}
	return conn, nil
}

// closeConn gives a connection of the control pool back, or closes it when it may
// have something left on it.
func closeConn(conn *sql.Conn, err error) {
	if err != nil {
		wire.Discard(conn)
		return
	}
	_ = conn.Close()
}
