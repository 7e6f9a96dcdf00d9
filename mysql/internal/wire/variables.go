package wire

import (
	"context"
	"database/sql"
	"strings"
)

// Warner is a *slog.Logger.
type Warner interface {
	WarnContext(ctx context.Context, msg string, args ...any)
}

// Variables reads those of the named variables that the server has, as the
// session sees them. MariaDB and MySQL don't have the same ones.
func Variables(ctx context.Context, conn *sql.Conn, names ...string) (map[string]string, error) {
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

// IsOn reports that a variable of the server is set.
func IsOn(value string) bool { return strings.EqualFold(value, "ON") || value == "1" }

// FlushesCommits reports that the server writes its log to the disk at every commit.
func FlushesCommits(vars map[string]string) bool {
	return vars["innodb_flush_log_at_trx_commit"] == "1"
}

// ManyPrimaries reports a member of a group of servers that all take writes.
func ManyPrimaries(vars map[string]string) bool {
	return vars["group_replication_group_name"] != "" && !IsOn(vars["group_replication_single_primary_mode"])
}

// WarnOfMissing tells of a table that does not exist. A name that was mistyped looks like
// one that nobody has used yet.
func WarnOfMissing(ctx context.Context, logger Warner, table string) {
	logger.WarnContext(ctx, "mysqllock: the table does not exist, or the user has no rights on it; nobody has locked anything there yet, or its name is not right", "table", table)
}
