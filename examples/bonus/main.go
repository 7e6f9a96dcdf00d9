// Bonus pays a bonus with two copies of a program, of which the first is paused (SIGSTOP)
// between its last look and its payment, for longer than its lease lasts. The second gets
// the lock and pays; then the first goes on.
//
//	go run ./examples/bonus                                  # lock and ledger in files
//	LOCK_URL=redis://localhost:6379 go run ./examples/bonus
//	go run ./examples/bonus -mysql 'user:password@tcp(localhost:3306)/database'
//
// With a lock alone the bonus is paid twice. With an idempotency key in the transaction of
// the payment it is paid once, but what the late copy writes beside it takes effect. With
// the token nothing does that comes late. The processes are real.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/mortiselock/lock/backend"
)

func main() {
	if job := os.Getenv(copyEnv); job != "" {
		exit(runCopy(context.Background(), job, os.Stdin, os.Stdout))
	}
	lockURL := flag.String("lock", os.Getenv("LOCK_URL"), "where the lock is (default: in files)")
	dsn := flag.String("mysql", os.Getenv("MYSQL_DSN"), "MySQL or MariaDB with the ledger, as user:password@tcp(host:port)/database (default: a file)")
	ttl := flag.Duration("ttl", 3*time.Second, "TTL of the leases")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	_, err := run(ctx, *lockURL, *dsn, *ttl, os.Stdout)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bonus:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// way is what protects the payment besides the lock.
type way struct {
	Name       string
	Key, Token bool
}

var ways = []way{
	{Name: "lock alone"},
	{Name: "and an idempotency key", Key: true},
	{Name: "and the token", Key: true, Token: true},
}

// run shows all ways, side by side, and prints a table.
func run(ctx context.Context, lockURL, dsn string, ttl time.Duration, out io.Writer) ([]outcome, error) {
	dir, err := os.MkdirTemp("", "bonus")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	lockURL = cmp.Or(lockURL, "file:"+filepath.Join(dir, "locks"))
	results, failed := make([]outcome, len(ways)), make([]error, len(ways))
	var wg sync.WaitGroup
	for i, w := range ways {
		wg.Go(func() {
			results[i], failed[i] = scene{way: w, lockURL: lockURL, ledger: newPlace(dir, dsn), ttl: ttl, pause: true}.play(ctx)
		})
	}
	wg.Wait()
	fmt.Fprintln(out, "| way | postings | the run's record | the late copy |\n|---|--:|---|---|")
	for i, w := range ways {
		if failed[i] != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, failed[i])
		}
		r := results[i]
		fmt.Fprintf(out, "| %s | %d | %d paid, by the %s copy | %s |\n", w.Name, r.Paid, r.Record.Paid, r.Record.By, r.late)
	}
	return results, nil
}

// newPlace is a place for a ledger that is nobody else's.
func newPlace(dir, dsn string) place {
	id := backend.NewID().Hex()
	if dsn != "" {
		return place{DSN: dsn, Name: "bonus_" + id}
	}
	return place{Name: filepath.Join(dir, id+".json")}
}

// job is what a copy is told, in its environment: it may have passwords in it.
type job struct {
	Copy    string // first or second
	Way     way
	LockURL string
	LockKey string
	TTL     time.Duration
	Ledger  place
	Waits   bool // for a line on its input, where it could be paused
}

const copyEnv = "BONUS_COPY"

func (j job) env() (string, error) {
	text, err := json.Marshal(j)
	return copyEnv + "=" + string(text), err
}
