package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/mortiselock/lock/backend"
)

// warner is a *slog.Logger.
type warner interface {
	WarnContext(ctx context.Context, msg string, args ...any)
}

// serverVariables reads those of the named variables that the server has, as the
// session sees them. MariaDB and MySQL don't have the same ones.
func serverVariables(ctx context.Context, conn *sql.Conn, names ...string) (map[string]string, error) {
	rows, err := conn.QueryContext(ctx, "SHOW VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "','")+"')")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	values := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		values[strings.ToLower(name)] = value
	}
	return values, rows.Err()
}

func on(value string) bool { return strings.EqualFold(value, "ON") || value == "1" }

// tableVariables are the settings that checkTableServer judges.
var tableVariables = []string{
	"autocommit", "completion_type", "read_only", "super_read_only", "innodb_read_only", "tx_read_only", "transaction_read_only",
	"innodb_flush_log_at_trx_commit", "wsrep_on", "group_replication_single_primary_mode", "group_replication_group_name",
	"log_bin", "sql_log_bin", "binlog_format",
}

// checkSettings asks the server for a sign of life, refuses what cannot work and
// warns of what may lose locks.
func (b *tableBackend) checkSettings(ctx context.Context, logger warner) error {
	var vars map[string]string
	err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
		vars, err = serverVariables(ctx, conn, tableVariables...)
		return err
	})
	if err != nil {
		return openError(ctx, err)
	}
	doubts, err := checkTableServer(vars)
	if err != nil {
		return err
	}
	for _, doubt := range doubts {
		logger.WarnContext(ctx, "mysqllock: "+doubt)
	}
	b.guarantees = tableGuarantees(flushesCommits(vars))
	return nil
}

func flushesCommits(vars map[string]string) bool {
	return vars["innodb_flush_log_at_trx_commit"] == "1"
}

// manyPrimaries reports a member of a group of servers that all take writes.
func manyPrimaries(vars map[string]string) bool {
	return vars["group_replication_group_name"] != "" && !on(vars["group_replication_single_primary_mode"])
}

// checkTableServer refuses servers on which the table cannot work, and returns what
// is doubtful about the others.
func checkTableServer(vars map[string]string) (doubts []string, err error) {
	if !on(vars["autocommit"]) {
		return nil, fmt.Errorf("mysqllock: open: %w: autocommit is off in the sessions of the pool, so that no statement would take effect; leave it on (the DSN parameter autocommit, or init_connect of the server)", backend.ErrInvalid)
	}
	if chain := vars["completion_type"]; chain != "NO_CHAIN" {
		return nil, fmt.Errorf("mysqllock: open: %w: completion_type is %s in the sessions of the pool, so that a commit can begin another transaction, in which what comes next does not take effect; leave it at NO_CHAIN", backend.ErrInvalid, chain)
	}
	if on(vars["log_bin"]) && vars["sql_log_bin"] != "OFF" && strings.EqualFold(vars["binlog_format"], "STATEMENT") {
		return nil, fmt.Errorf("mysqllock: open: %w: binlog_format is STATEMENT: the server then refuses writes under READ COMMITTED, as guarded writes make them (error 1665), and a replica can't repeat a renewal that leaves out locked rows; set binlog_format to ROW or MIXED, for the server or for the sessions of the pool", backend.ErrPermanent)
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only", "tx_read_only", "transaction_read_only"} {
		if on(vars[name]) {
			return nil, fmt.Errorf("mysqllock: open: %w: %s is on: use the address of the primary", backend.ErrUnavailable, name)
		}
	}
	if !flushesCommits(vars) {
		doubts = append(doubts, "the server may forget locks and fencing tokens of the last second when it crashes; set innodb_flush_log_at_trx_commit to 1, it is "+vars["innodb_flush_log_at_trx_commit"])
	}
	if on(vars["wsrep_on"]) {
		doubts = append(doubts, "the server is a Galera node: all Lockers must write to the same node, and a lock can be lost when it fails")
	}
	if manyPrimaries(vars) {
		doubts = append(doubts, "the server is a member of a group with several primaries: all Lockers must write to the same one")
	}
	return doubts, nil
}
