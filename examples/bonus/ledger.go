package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/gofrs/flock"
)

// posting is a payment. Key, unless it is empty, may be in the ledger once.
type posting struct {
	Account string
	Cents   int
	Key     string
}

// record is the note of the last run: how many it has paid. Token, unless it is 0, is
// that of the lease it was written under.
type record struct {
	Paid  int
	By    string
	Token uint64
}

var (
	errPaid    = errors.New("refused: posted before")
	errTooLate = errors.New("refused: comes too late")
)

// ledger keeps the postings and the record of the last run. Each method is one
// transaction.
type ledger interface {
	// paid says whether the account has a posting.
	paid(ctx context.Context, account string) (bool, error)
	// pay adds a posting. It returns errPaid when its key is there, and errTooLate when
	// the token is smaller than one it has seen; then nothing is changed.
	pay(ctx context.Context, p posting, token uint64) error
	// note replaces the record, unless it returns errTooLate.
	note(ctx context.Context, r record) error
	// sum returns how many postings there are, and the record.
	sum(ctx context.Context) (paid int, r record, err error)
	close() error
}

// place is where a ledger is: a file, or two tables of a database.
type place struct{ DSN, Name string }

func (p place) open() (ledger, error) {
	if p.DSN != "" {
		return openTables(p)
	}
	return fileLedger{p.Name, flock.New(p.Name + ".lock")}, nil
}

// fileLedger is a ledger for which nothing has to be installed. A lock of the operating
// system makes a change of the file one transaction.
type fileLedger struct {
	name string
	lock *flock.Flock
}

type book struct {
	Postings []posting
	Record   record
	Token    uint64 // the largest seen
}

func (l fileLedger) do(change func(b *book) error) (err error) {
	if err := l.lock.Lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.lock.Unlock()) }()
	var b book
	text, err := os.ReadFile(l.name)
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := change(&b); err != nil {
		return err
	}
	if text, err = json.Marshal(b); err != nil {
		return err
	}
	if err := os.WriteFile(l.name+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(l.name+".new", l.name)
}

func (b *book) see(token uint64) error {
	if token != 0 && token < b.Token {
		return errTooLate
	}
	b.Token = max(b.Token, token)
	return nil
}

func (l fileLedger) paid(_ context.Context, account string) (paid bool, err error) {
	err = l.do(func(b *book) error {
		paid = slices.ContainsFunc(b.Postings, func(p posting) bool { return p.Account == account })
		return nil
	})
	return paid, err
}

func (l fileLedger) pay(_ context.Context, p posting, token uint64) error {
	return l.do(func(b *book) error {
		if err := b.see(token); err != nil {
			return err
		}
		if p.Key != "" && slices.ContainsFunc(b.Postings, func(other posting) bool { return other.Key == p.Key }) {
			return errPaid
		}
		b.Postings = append(b.Postings, p)
		return nil
	})
}

func (l fileLedger) note(_ context.Context, r record) error {
	return l.do(func(b *book) error {
		if err := b.see(r.Token); err != nil {
			return err
		}
		b.Record = r
		return nil
	})
}

func (l fileLedger) sum(context.Context) (paid int, r record, err error) {
	err = l.do(func(b *book) error {
		paid, r = len(b.Postings), b.Record
		return nil
	})
	return paid, r, err
}

func (l fileLedger) close() error { return l.lock.Close() }
