package row

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"unicode"

	"github.com/mortiselock/lock/mysql/internal/wire"
)

// ExecContext sends a statement without rows.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	statement, free, err := t.use(ctx, query)
	if err != nil {
		return nil, err
	}
	defer free()
	sent := t.b.clock.Now()
	res, err := t.h.s.conn.ExecContext(statement, query, args...)
	if err != nil {
		return nil, t.failed(err)
	}
	t.h.extended(sent)
	return res, nil
}

// QueryContext returns rows that must be closed before the next statement.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*Rows, error) {
	statement, free, err := t.use(ctx, query)
	if err != nil {
		return nil, err
	}
	sent := t.b.clock.Now()
	rows, err := t.h.s.conn.QueryContext(statement, query, args...) //nolint:rowserrcheck // by the caller
	if err != nil {
		err = t.failed(err)
		free()
		return nil, err
	}
	t.h.extended(sent)
	r := &Rows{t: t, rows: rows, free: free}
	r.life, r.cut = context.WithCancel(statement)
	t.open.Store(r)
	// The turn must come free when the lease ends, whoever still looks at the rows.
	context.AfterFunc(r.life, func() { _ = r.Close() })
	return r, nil
}

// failed notes what an error of a statement means for the hold. The turn is taken.
func (t *Tx) failed(err error) error {
	h := t.h
	if h.phase != phaseHeld {
		return err
	}
	code := wire.CodeOf(err)
	over := code == wire.CodeDeadlock || code == 1402 || code == 3101
	if code == 0 {
		over = !h.s.usable() || errors.Is(err, errSessionGone)
	} else {
		over = over || sessionEnded(err)
	}
	if !over {
		return err
	}
	cause := t.b.lossOf(context.WithoutCancel(t.ctx), h, err)
	t.b.lose(h, cause)
	return cause
}

// usable asks the driver whether the connection is good for another statement.
func (s *session) usable() bool {
	return !s.isCut && s.conn.Raw(func(c any) error {
		if v, ok := c.(driver.Validator); ok && v.IsValid() {
			return nil
		}
		return driver.ErrBadConn
	}) == nil
}

// Rows are the rows of a query. No heartbeat is sent while they are open.
type Rows struct {
	t    *Tx
	rows *sql.Rows
	life context.Context // of the statement
	cut  context.CancelFunc
	free func()
	once sync.Once
	err  error
}

// Next prepares the next row for Scan, and closes the rows after the last.
func (r *Rows) Next() bool {
	if r.rows.Next() {
		return true
	}
	_ = r.Close()
	return false
}

// Scan is that of *sql.Rows.
func (r *Rows) Scan(dest ...any) error { return r.rows.Scan(dest...) }

// Columns are the names of the columns.
func (r *Rows) Columns() ([]string, error) { return r.rows.Columns() }

// Err is the error that ended the rows early, if there was one.
func (r *Rows) Err() error { return r.rows.Err() }

// Close ends the query. It is safe to call it again.
func (r *Rows) Close() error {
	r.once.Do(func() {
		r.err = r.drain()
		err := r.rows.Err()
		if err == nil {
			err = r.err
		}
		if err != nil {
			_ = r.t.failed(err)
		}
		r.t.open.CompareAndSwap(r, nil)
		r.cut()
		r.free()
	})
	return r.err
}

// drain closes the rows of the driver, which then reads what is left of them and no
// longer watches the context.
func (r *Rows) drain() error {
	s := r.t.h.s
	if s.socket != nil {
		stop := context.AfterFunc(r.life, func() { _ = s.socket.Close() })
		defer func() {
			if !stop() {
				s.isCut = true
			}
		}()
	}
	return r.rows.Close()
}

// transactionWords begin statements that end a transaction: those of transactions
// themselves, and those that commit implicitly, by the manuals of MySQL and MariaDB.
// SAVEPOINT is among them because rolling back to one would remove that of the hold.
var transactionWords = map[string]bool{}

func init() {
	for _, w := range strings.Fields(`ALTER ANALYZE BEGIN BINLOG CACHE CHANGE CHECK COMMIT CREATE DROP FLUSH GRANT IMPORT
		INSTALL LOCK OPTIMIZE RELEASE RENAME REPAIR RESET REVOKE ROLLBACK SAVEPOINT SHUTDOWN START STOP TRUNCATE UNINSTALL UNLOCK XA`) {
		transactionWords[w] = true
	}
}

// transactionWord returns the first word of a statement that must not be sent, or
// nothing. It does not look into procedures: the savepoint of the hold is the proof.
func transactionWord(query string) string {
	word, rest := nextWord(query)
	second, _ := nextWord(rest)
	switch {
	case (word == "CREATE" || word == "DROP") && second == "TEMPORARY":
		return ""
	case transactionWords[word]:
		return word
	case word == "SET" && strings.Contains(strings.ToLower(rest), "autocommit"):
		return "SET autocommit"
	}
	return ""
}

// nextWord is the next word in capitals, after blanks and comments.
func nextWord(q string) (word, rest string) {
	for {
		q = strings.TrimLeftFunc(q, unicode.IsSpace)
		end := ""
		switch {
		case strings.HasPrefix(q, "/*!"), strings.HasPrefix(q, "/*M!"):
			q = strings.TrimLeft(q[2:], "M!0123456789") // its content is executed
			continue
		case strings.HasPrefix(q, "/*"):
			end = "*/"
		case strings.HasPrefix(q, "#"), strings.HasPrefix(q, "--"):
			end = "\n"
		}
		if end == "" {
			break
		}
		_, q, _ = strings.Cut(q, end)
	}
	i := strings.IndexFunc(q, func(r rune) bool { return !unicode.IsLetter(r) && r != '_' })
	if i < 0 {
		i = len(q)
	}
	return strings.ToUpper(q[:i]), q[i:]
}
