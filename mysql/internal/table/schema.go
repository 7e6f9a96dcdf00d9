package table

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// tableColumns are what the statements need. length is the least that a column must
// hold, or the digits of its seconds; missing is what it has in the rows of a table to
// which it is added.
var tableColumns = []struct {
	name, kind string
	length     int
	missing    string
	comment    string
}{
	{"lock_key", "varbinary", backend.MaxKey, "", "the key; a name of control characters is a row of the library"},
	{"owner", "varbinary", hashLength, "'-'", "hash of the explicit owner, - without one"},
	{"token", "bigint", 0, "0", "last fencing token"},
	{"hold_count", "int", 0, "0", "holds, 0 when free"},
	{"holds", "varbinary", maxHolds, "'-'", "hashes of acquisition ids, with their expiries when there are several"},
	{"note", "varbinary", maxNote, "'{}'", "label, host and pid of the last holder, JSON"},
	{"created", "datetime", 6, "'1970-01-01 00:00:00'", "when the last holder got the key, UTC"},
	{"updated", "datetime", 6, "'1970-01-01 00:00:00'", "last change, UTC; a later time is the floor of the next token"},
	{"expires", "datetime", 6, "'1970-01-01 00:00:00'", "free from then on, UTC"},
}

// DDL is the statement that creates the table, whose name it checks.
func DDL(name string) (string, error) {
	if name == "" {
		name = DefaultName
	}
	if err := wire.CheckTable(name); err != nil {
		return "", err
	}
	return ddl(name), nil
}

func ddl(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE IF NOT EXISTS %s (\n", wire.Quote(name))
	for _, c := range tableColumns {
		fmt.Fprintf(&b, "  %-10s %-15s NOT NULL COMMENT '%s',\n", c.name, columnDDL(c.kind, c.length), c.comment)
	}
	b.WriteString("  PRIMARY KEY (lock_key)\n) ENGINE=InnoDB ROW_FORMAT=DYNAMIC COMMENT='locks of github.com/mortiselock/lock'")
	return b.String()
}

func columnDDL(kind string, length int) string {
	kind = strings.ToUpper(kind)
	if length > 0 {
		kind += "(" + strconv.Itoa(length) + ")"
	}
	return kind
}

// wrongTable is the error about a table that cannot be used, with what to do.
func (b *Backend) wrongTable(format string, args ...any) error {
	return fmt.Errorf("mysqllock: open: %w: table %s: %w; this statement creates it:\n%s",
		backend.ErrPermanent, b.name, fmt.Errorf(format, args...), ddl(b.name))
}

// prepare looks at the server's settings, creates the table if it may, and checks
// table and rights.
func (b *Backend) prepare(ctx context.Context, logger wire.Warner, create bool) error {
	b.mayCreate = create
	if err := b.checkSettings(ctx, logger); err != nil {
		return err
	}
	missing, err := b.checkColumns(ctx)
	if err == nil && missing && create {
		if err := b.create(ctx); err != nil {
			return err
		}
		missing, err = b.checkColumns(ctx)
	}
	if err != nil {
		return err
	}
	if missing {
		return b.wrongTable("it does not exist, or the user has no rights on it")
	}
	return b.checkRights(ctx)
}

// prepareLook is prepare for who only looks: it writes nothing, and asks for no right to.
func (b *Backend) prepareLook(ctx context.Context, logger wire.Warner) error {
	if err := b.checkSettings(ctx, logger); err != nil {
		return err
	}
	missing, err := b.checkColumns(ctx)
	if missing {
		wire.WarnOfMissing(ctx, logger, b.name)
	}
	return err
}

// create makes the table. Somebody else may do the same at the same time.
func (b *Backend) create(ctx context.Context) error {
	err := b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, ddl(b.name))
		return err
	})
	switch {
	case err == nil, wire.CodeOf(err) == wire.CodeTableExists:
		return nil
	case errors.Is(wire.Sentinel(err), backend.ErrPermanent) && wire.CodeOf(err) != wire.CodeUnknownDatabase && wire.CodeOf(err) != 1046:
		return b.wrongTable("it does not exist, or the user has no rights on it, and it could not be created: %w", err)
	}
	return wire.OpenError(ctx, err)
}

// checkColumns compares the table with the DDL, as far as the statements need it.
func (b *Backend) checkColumns(ctx context.Context) (missing bool, err error) {
	schema, table := "DATABASE()", statement(nil).bytes(b.name)
	if database, name, ok := strings.Cut(b.name, "."); ok {
		schema, table = string(statement(nil).bytes(database)), statement(nil).bytes(name)
	}
	where := " WHERE table_schema=" + schema + " AND table_name=" + string(table)
	var engine string
	kinds, keys := map[string]string{}, map[string]string{}
	err = b.step(ctx, func(ctx context.Context, conn *sql.Conn) error {
		engine = ""
		var e sql.NullString
		err := conn.QueryRowContext(ctx, "SELECT engine FROM information_schema.tables"+where).Scan(&e)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		engine = e.String
		if !e.Valid {
			engine = "none: it is a view"
		}
		rows, err := conn.QueryContext(ctx, "SELECT column_name,column_type,column_key FROM information_schema.columns"+where)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name, kind, key string
			if err := rows.Scan(&name, &kind, &key); err != nil {
				return err
			}
			name = strings.ToLower(name)
			kinds[name], keys[name] = strings.ToLower(kind), key
		}
		return rows.Err()
	})
	if err != nil {
		return false, wire.OpenError(ctx, err)
	}
	if engine == "" {
		return true, nil
	}
	if !strings.EqualFold(engine, "InnoDB") {
		return false, b.wrongTable("its engine is %s; the locks need InnoDB (ALTER TABLE %s ENGINE=InnoDB)", engine, b.table)
	}
	var wrong, alter []string
	for _, c := range tableColumns {
		column := c.name + " " + columnDDL(c.kind, c.length) + " NOT NULL"
		if kind, ok := kinds[c.name]; !ok {
			wrong = append(wrong, "column "+c.name+" is missing, or the user may not see it")
			alter = append(alter, "ADD COLUMN "+column+" DEFAULT "+c.missing)
		} else if !fits(kind, c.kind, c.length) {
			wrong = append(wrong, fmt.Sprintf("column %s is %s", c.name, kind))
			alter = append(alter, "MODIFY COLUMN "+column)
		}
	}
	var primary []string
	for name, key := range keys {
		if key == "PRI" {
			primary = append(primary, name)
		}
	}
	if !slices.Equal(primary, []string{"lock_key"}) && len(wrong) == 0 {
		wrong = append(wrong, "its primary key is not lock_key alone")
	}
	switch {
	case len(wrong) == 0:
		return false, nil
	case len(alter) == 0, kinds["lock_key"] == "":
		return false, b.wrongTable("%s", strings.Join(wrong, "; "))
	}
	return false, b.wrongTable("%s; this statement puts it right, while nobody holds a key in it:\nALTER TABLE %s %s;\nor name another table", strings.Join(wrong, "; "), b.table, strings.Join(alter, ", "))
}

var columnType = regexp.MustCompile(`^([a-z]+)(?:\((\d+)\))?(.*)$`)

// fits reports whether a column as the server describes it holds what we put into
// it. MariaDB gives integers a width, which means nothing.
func fits(kind, want string, length int) bool {
	m := columnType.FindStringSubmatch(kind)
	if m == nil || m[1] != want || strings.TrimSpace(m[3]) != "" {
		return false
	}
	n, _ := strconv.Atoi(m[2])
	switch want {
	case "varbinary":
		return n >= length
	case "datetime":
		return n == length
	}
	return true
}

// checkRights tries the rights that the statements need, and puts the row of the
// floor into place.
func (b *Backend) checkRights(ctx context.Context) error {
	for _, s := range []statement{
		b.selects().text(" LIMIT 0"),
		b.updates().text("updated=updated,token=token,owner=owner,hold_count=hold_count,holds=holds,note=note,created=created,expires=expires WHERE FALSE"),
		b.insertFloor(0),
	} {
		_, err := b.change(ctx, s)
		switch code := wire.CodeOf(err); {
		case err == nil:
		case code == wire.CodeTableDenied || code == wire.CodeColumnDenied:
			return b.wrongTable("the user needs SELECT, INSERT and UPDATE on it (GRANT SELECT, INSERT, UPDATE ON %s TO the user): %w", b.table, err)
		case errors.Is(wire.Sentinel(err), backend.ErrPermanent):
			return b.wrongTable("%w", err)
		default:
			return wire.OpenError(ctx, err)
		}
	}
	return nil
}

// insertFloor creates the row of the floor if there is none.
func (b *Backend) insertFloor(token int64) statement {
	return statement(nil).text("INSERT IGNORE INTO ").text(b.table).text(" (" + columns + ") VALUES (").bytes(floorKey).
		text("," + nobody + ",").int(token).text(",0," + nobody + ",'{}'," + epoch + "," + now + "," + epoch + ")")
}
