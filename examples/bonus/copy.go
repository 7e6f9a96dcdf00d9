package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/mortiselock/lock"
	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	_ "github.com/mortiselock/lock/mysql"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

const (
	account = "4711"
	decided = "decided" // what a copy says before it pays
)

// runCopy is a copy of the program at work.
func runCopy(ctx context.Context, text string, in io.Reader, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	l, err := lock.Open(ctx, j.LockURL, &lock.Options{TTL: j.TTL})
	if err != nil {
		return err
	}
	defer l.Close()
	ledger, err := j.Ledger.open()
	if err != nil {
		return err
	}
	defer ledger.close()
	for {
		var failed error
		err := lock.Do(ctx, l, j.LockKey, func(ctx context.Context, lease lock.Lease) error {
			failed = j.pay(ctx, ledger, lease, in, out)
			return failed
		})
		switch {
		case errors.Is(failed, lock.ErrLost): // before it had decided: once more
		case errors.Is(err, lock.ErrLost):
			return failed // it has said what came of it; what it did late is for the ledger to refuse
		default:
			return err
		}
	}
}

// pay pays the bonus unless it is paid, and notes what this run has paid. A lease that was
// lost before it decided is an error, ErrLost.
func (j job) pay(ctx context.Context, ledger ledger, lease lock.Lease, in io.Reader, out io.Writer) error {
	paid, err := ledger.paid(ctx, account)
	if err != nil {
		return err
	}
	r := record{By: j.Copy}
	if j.Way.Token {
		r.Token = lease.Token()
	}
	if paid {
		fmt.Fprintln(out, "found it paid")
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// The lease was valid just now. However late the last look is, a pause can come after it.
	fmt.Fprintln(out, decided)
	if j.Waits {
		if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
			return err
		}
	}
	ctx = context.WithoutCancel(ctx) // what is on its way is not called back
	p := posting{Account: account, Cents: 100_00}
	if j.Way.Key {
		p.Key = "bonus/2026/" + account // the same in every copy, and at every repetition
	}
	switch err := ledger.pay(ctx, p, r.Token); {
	case err == nil:
		r.Paid = 1
		fmt.Fprintln(out, "has paid")
	case errors.Is(err, errPaid), errors.Is(err, errTooLate):
		fmt.Fprintln(out, err)
	default:
		return err
	}
	if err := ledger.note(ctx, r); err != nil && !errors.Is(err, errTooLate) {
		return err
	}
	return nil
}
