package table

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// variables are the settings that checkServer judges.
var variables = []string{
	"autocommit", "completion_type", "read_only", "super_read_only", "innodb_read_only", "tx_read_only", "transaction_read_only",
	"innodb_flush_log_at_trx_commit", "wsrep_on", "group_replication_single_primary_mode", "group_replication_group_name",
	"log_bin", "sql_log_bin", "binlog_format",
}

// checkSettings asks the server for a sign of life, refuses what cannot work and
// warns of what may lose locks.
func (b *Backend) checkSettings(ctx context.Context, logger wire.Warner) error {
	var vars map[string]string
	err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
		vars, err = wire.Variables(ctx, conn, variables...)
		return err
	})
	if err != nil {
		return wire.OpenError(ctx, err)
	}
	doubts, err := checkServer(vars)
	if err != nil {
		return err
	}
	for _, doubt := range doubts {
		logger.WarnContext(ctx, "mysqllock: "+doubt)
	}
	b.guarantees = Guarantees(wire.FlushesCommits(vars))
	return nil
}

// checkServer refuses servers on which the table cannot work, and returns what
// is doubtful about the others.
func checkServer(vars map[string]string) (doubts []string, err error) {
	if !wire.IsOn(vars["autocommit"]) {
		return nil, fmt.Errorf("mysqllock: open: %w: autocommit is off in the sessions of the pool, so that no statement would take effect; leave it on (the DSN parameter autocommit, or init_connect of the server)", backend.ErrInvalid)
	}
	if chain := vars["completion_type"]; chain != "NO_CHAIN" {
		return nil, fmt.Errorf("mysqllock: open: %w: completion_type is %s in the sessions of the pool, so that a commit can begin another transaction, in which what comes next does not take effect; leave it at NO_CHAIN", backend.ErrInvalid, chain)
	}
	if wire.IsOn(vars["log_bin"]) && vars["sql_log_bin"] != "OFF" && strings.EqualFold(vars["binlog_format"], "STATEMENT") {
		return nil, fmt.Errorf("mysqllock: open: %w: binlog_format is STATEMENT: the server then refuses writes under READ COMMITTED, as guarded writes make them (error 1665), and a replica can't repeat a renewal that leaves out locked rows; set binlog_format to ROW or MIXED, for the server or for the sessions of the pool", backend.ErrPermanent)
	}
	for _, name := range []string{"read_only", "super_read_only", "innodb_read_only", "tx_read_only", "transaction_read_only"} {
		if wire.IsOn(vars[name]) {
			return nil, fmt.Errorf("mysqllock: open: %w: %s is on: use the address of the primary", backend.ErrUnavailable, name)
		}
	}
	if !wire.FlushesCommits(vars) {
		doubts = append(doubts, "the server may forget locks and fencing tokens of the last second when it crashes; set innodb_flush_log_at_trx_commit to 1, it is "+vars["innodb_flush_log_at_trx_commit"])
	}
	if wire.IsOn(vars["wsrep_on"]) {
		doubts = append(doubts, "the server is a Galera node: all Lockers must write to the same node, and a lock can be lost when it fails")
	}
	if wire.ManyPrimaries(vars) {
		doubts = append(doubts, "the server is a member of a group with several primaries: all Lockers must write to the same one")
	}
	return doubts, nil
}
