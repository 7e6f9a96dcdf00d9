//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/mortiselock/lock/backend"
	mysqllock "github.com/mortiselock/lock/mysql"
)

// sqlStore keeps the tasks in MySQL or MariaDB. The token is in the WHERE clause of each
// UPDATE: this is the form for a real service.
type sqlStore struct {
	db    *sql.DB
	name  string // of the tables, in front
	check check
}

// openSQL opens the store in the database of the URL of the locks.
func openSQL(url, name string, by check) (store, error) {
	u, err := backend.ParseURL(url)
	if err != nil {
		return nil, err
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr, cfg.DBName = u.User, u.Password, "tcp", u.HostsWithPort("3306")[0], strings.TrimPrefix(u.Path, "/")
	connector, err := mysqllock.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return &sqlStore{sql.OpenDB(connector), name, by}, nil
}

// create makes the tables. That of the effects has no unique key, so that a second effect
// of a task is seen.
func (s *sqlStore) create(ctx context.Context) error {
	for _, table := range []string{
		"_tasks (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(10) NOT NULL DEFAULT 'waiting', token BIGINT UNSIGNED NOT NULL DEFAULT 0, pid INT NOT NULL DEFAULT 0, begun INT NOT NULL DEFAULT 0, tries INT NOT NULL DEFAULT 0, KEY (state))",
		"_queue (message BIGINT AUTO_INCREMENT PRIMARY KEY, task INT NOT NULL, token BIGINT UNSIGNED NOT NULL)",
		"_effects (id BIGINT AUTO_INCREMENT PRIMARY KEY, task INT NOT NULL, token BIGINT UNSIGNED NOT NULL)",
		"_refused (id BIGINT AUTO_INCREMENT PRIMARY KEY, task INT NOT NULL, token BIGINT UNSIGNED NOT NULL)",
	} {
		if _, err := s.db.ExecContext(ctx, "CREATE TABLE "+s.name+table+" ENGINE=InnoDB"); err != nil {
			return err
		}
	}
	return nil
}

func (s *sqlStore) drop(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, "DROP TABLE IF EXISTS "+s.name+"_tasks, "+s.name+"_queue, "+s.name+"_effects, "+s.name+"_refused")
	return err
}

// ours is the condition of the claim, or less.
func (s *sqlStore) ours(token, less string) string {
	if s.check == byToken {
		return token
	}
	return less
}

// changed runs a statement, and says whether it has changed a row.
func changed(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

func (s *sqlStore) Add(ctx context.Context, n int) error {
	_, err := s.db.ExecContext(ctx, "INSERT INTO "+s.name+"_tasks (state) VALUES ('waiting')"+strings.Repeat(", ('waiting')", n-1))
	return err
}

func (s *sqlStore) Requeue(ctx context.Context, token uint64) error {
	_, err := s.db.ExecContext(ctx, "UPDATE "+s.name+"_tasks SET state = 'waiting', token = ? WHERE state = 'dispatched' AND token < ?", token, token)
	return err
}

func (s *sqlStore) Dispatch(ctx context.Context, token uint64, pid int) (claim, bool, error) {
	for {
		c := claim{Token: token}
		err := s.db.QueryRowContext(ctx, "SELECT id FROM "+s.name+"_tasks WHERE state = 'waiting' AND "+s.ours("token <= ?", "? > 0")+" ORDER BY id LIMIT 1", token).Scan(&c.Task)
		if errors.Is(err, sql.ErrNoRows) {
			return c, false, nil
		}
		if err != nil {
			return c, false, err
		}
		ok, err := changed(s.db.ExecContext(ctx, "UPDATE "+s.name+"_tasks SET state = 'dispatched', token = ?, pid = ? WHERE id = ? AND state = 'waiting' AND "+s.ours("token <= ?", "? > 0"), token, pid, c.Task, token))
		if ok || err != nil {
			return c, ok, err
		}
	}
}

func (s *sqlStore) Begin(ctx context.Context, c claim) error {
	ok, err := changed(s.db.ExecContext(ctx, "UPDATE "+s.name+"_tasks SET begun = begun + 1 WHERE id = ? AND state = 'dispatched' AND "+s.ours("token = ?", "? > 0"), c.Task, c.Token))
	if err == nil && !ok {
		return errNotOurs
	}
	return err
}

func (s *sqlStore) Finish(ctx context.Context, c claim, ok bool) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	ours, err := changed(tx.ExecContext(ctx, "UPDATE "+s.name+"_tasks SET tries = tries + ?, state = CASE WHEN ? THEN 'done' WHEN tries >= ? THEN 'failed' ELSE 'waiting' END WHERE id = ? AND "+
		finishing[s.check], failures(ok), ok, maxTries, c.Task, c.Token))
	if err != nil {
		return err
	}
	ours = ours || s.check == byLock // where it was done already, nothing of the row is new
	table := ""
	switch {
	case !ours:
		table = "_refused"
	case ok:
		table = "_effects"
	}
	if table != "" {
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+s.name+table+" (task, token) VALUES (?, ?)", c.Task, c.Token); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if !ours {
		return errNotOurs
	}
	return nil
}

// finishing is the condition of each check, with the token.
var finishing = map[check]string{
	byToken: "state = 'dispatched' AND token = ?",
	byState: "state = 'dispatched' AND ? > 0",
	byLock:  "? > 0",
}

// failures is how many failures this is.
func failures(ok bool) int {
	if ok {
		return 0
	}
	return 1
}

func (s *sqlStore) Send(ctx context.Context, c claim) error {
	_, err := s.db.ExecContext(ctx, "INSERT INTO "+s.name+"_queue (task, token) VALUES (?, ?)", c.Task, c.Token)
	return err
}

func (s *sqlStore) Receive(ctx context.Context) ([]claim, error) {
	return s.claims(ctx, "SELECT message, task, token FROM "+s.name+"_queue ORDER BY message LIMIT ?", batch)
}

func (s *sqlStore) claims(ctx context.Context, query string, args ...any) ([]claim, error) {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []claim
	for rows.Next() {
		var c claim
		if err := rows.Scan(&c.Message, &c.Task, &c.Token); err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, rows.Err()
}

func (s *sqlStore) Ack(ctx context.Context, c claim) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM "+s.name+"_queue WHERE message = ?", c.Message)
	return err
}

func (s *sqlStore) Busy(ctx context.Context) (bool, error) {
	var n int
	err := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+s.name+"_tasks FOR UPDATE NOWAIT").Scan(&n)
	// ER_LOCK_NOWAIT of MySQL, and what MariaDB says in its place.
	if e := new(mysql.MySQLError); errors.As(err, &e) && (e.Number == 3572 || e.Number == 1205) {
		return true, nil
	}
	return false, err
}

func (s *sqlStore) Look(ctx context.Context) (v view, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, state, token, pid, begun, tries FROM "+s.name+"_tasks ORDER BY id")
	if err != nil {
		return v, err
	}
	defer rows.Close()
	for rows.Next() {
		var t task
		if err := rows.Scan(&t.ID, &t.State, &t.Token, &t.PID, &t.Begun, &t.Tries); err != nil {
			return v, err
		}
		v.Tasks = append(v.Tasks, t)
	}
	if err := rows.Err(); err != nil {
		return v, err
	}
	if v.Effects, err = s.claims(ctx, "SELECT id, task, token FROM "+s.name+"_effects ORDER BY id"); err != nil {
		return v, err
	}
	v.Refused, err = s.claims(ctx, "SELECT id, task, token FROM "+s.name+"_refused ORDER BY id")
	return v, err
}

func (s *sqlStore) Close() error { return s.db.Close() }
