package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/go-sql-driver/mysql"
)

// tables is a ledger in MySQL or MariaDB.
type tables struct {
	db            *sql.DB
	postings, run string
}

func openTables(p place) (tables, error) {
	db, err := sql.Open("mysql", p.DSN)
	return tables{db, p.Name + "_postings", p.Name + "_run"}, err
}

func (t tables) create(ctx context.Context) error {
	for _, query := range []string{
		"CREATE TABLE " + t.postings + " (id INT AUTO_INCREMENT PRIMARY KEY, account VARCHAR(20) NOT NULL, cents INT NOT NULL, idempotency VARCHAR(60) UNIQUE) ENGINE=InnoDB",
		"CREATE TABLE " + t.run + " (paid INT NOT NULL, who VARCHAR(20) NOT NULL, token BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
		"INSERT INTO " + t.run + " VALUES (0, '', 0)",
	} {
		if _, err := t.db.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

func (t tables) drop(ctx context.Context) error {
	_, err := t.db.ExecContext(ctx, "DROP TABLE IF EXISTS "+t.postings+", "+t.run)
	return err
}

// transaction commits what do has done, unless it returns an error or the token is
// smaller than one that was seen. The row with the token stays locked until then.
func (t tables) transaction(ctx context.Context, token uint64, do func(tx *sql.Tx) error) (err error) {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if token != 0 {
		var seen uint64
		if err := tx.QueryRowContext(ctx, "SELECT token FROM "+t.run+" FOR UPDATE").Scan(&seen); err != nil {
			return err
		}
		if token < seen {
			return errTooLate
		}
		if _, err := tx.ExecContext(ctx, "UPDATE "+t.run+" SET token = ?", token); err != nil {
			return err
		}
	}
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (t tables) paid(ctx context.Context, account string) (paid bool, err error) {
	err = t.db.QueryRowContext(ctx, "SELECT COUNT(*) > 0 FROM "+t.postings+" WHERE account = ?", account).Scan(&paid)
	return paid, err
}

func (t tables) pay(ctx context.Context, p posting, token uint64) error {
	return t.transaction(ctx, token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO "+t.postings+" (account, cents, idempotency) VALUES (?, ?, ?)",
			p.Account, p.Cents, sql.NullString{String: p.Key, Valid: p.Key != ""})
		var refused *mysql.MySQLError
		if errors.As(err, &refused) && refused.Number == 1062 { // the key is there
			return errPaid
		}
		return err
	})
}

func (t tables) note(ctx context.Context, r record) error {
	return t.transaction(ctx, r.Token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE "+t.run+" SET paid = ?, who = ?", r.Paid, r.By)
		return err
	})
}

func (t tables) sum(ctx context.Context) (paid int, r record, err error) {
	err = t.db.QueryRowContext(ctx, "SELECT (SELECT COUNT(*) FROM "+t.postings+"), paid, who, token FROM "+t.run).Scan(&paid, &r.Paid, &r.By, &r.Token)
	return paid, r, err
}

func (t tables) close() error { return t.db.Close() }
