package wire

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/mortiselock/lock/backend"
)

var tableName = regexp.MustCompile(`^(?:[0-9A-Za-z_$-]{1,64}\.)?[0-9A-Za-z_$]{1,64}$`)

// CheckTable accepts table and database.table, of characters that no server
// takes for anything else.
func CheckTable(name string) error {
	if !tableName.MatchString(name) {
		return fmt.Errorf("mysqllock: %w: the table is named by at most 64 letters, digits, _ and $, with or without a database and a dot before it", backend.ErrInvalid)
	}
	return nil
}

// Quote is a checked table name as statements have it.
func Quote(name string) string {
	return "`" + strings.ReplaceAll(name, ".", "`.`") + "`"
}
