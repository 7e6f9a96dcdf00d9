//go:build unix

// Dispatcher has two copies of a batch dispatcher, of which one works: it takes tasks from a
// table, puts them on a queue that delivers at least once, and does what it receives. Tasks
// are claimed with the fencing token of the lock. The program kills the copy that works at
// random moments, and pauses it for longer than its lease. Two more runs, whose copies compare
// the state of a task alone, and nothing, show what each is for.
//
//	go run ./examples/dispatcher
//	go run ./examples/dispatcher -kills 50 -url file:/tmp/locks
//	go run ./examples/dispatcher -url mysql://user:password@localhost/app
//	go run ./examples/dispatcher -url redis://localhost:6379
//
// With a mysql: URL the tasks are in that database too, else in a directory of their own.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/mortiselock/lock"

	// What -url may name.
	_ "github.com/mortiselock/lock/etcd"
	_ "github.com/mortiselock/lock/file"
	_ "github.com/mortiselock/lock/redis"
	_ "github.com/mortiselock/lock/redis/redlock"
	_ "github.com/mortiselock/lock/zookeeper"
)

func main() {
	logging.Disable() // go-redis writes to stderr otherwise
	runCopy()
	url := flag.String("url", "", "`url` of the locks (default file: with a directory of its own)")
	kills := flag.Int("kills", 5, "how often the copy that works is killed")
	ttl := flag.Duration("ttl", 0, "TTL of the lease (default 1s, or the least of the store)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *url, *ttl, *kills, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dispatcher:", err)
		os.Exit(1)
	}
}

// run does the three runs, and prints a table.
func run(ctx context.Context, url string, ttl time.Duration, kills int, out io.Writer) error {
	dir, err := os.MkdirTemp("", "dispatcher-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if url == "" {
		url = "file:" + filepath.Join(dir, "locks")
	}
	locker, err := lock.Open(ctx, url, &lock.Options{TTL: ttl}) // a wrong URL is told before anything is made
	if err != nil {
		return err
	}
	if ttl == 0 {
		ttl = max(time.Second, locker.Guarantees().MinTTL)
	}
	if err := locker.Close(); err != nil {
		return err
	}
	var wrong error
	const form = "%-15s  %6v  %6v  %5v  %4v  %6v  %5v  %7v  %5v  %10v  %s\n"
	fmt.Fprintf(out, form, "compared", "killed", "paused", "tasks", "done", "failed", "begun", "refused", "stale", "done twice", "time")
	for _, t := range []trial{
		{setup{URL: url, TTL: ttl, Takes: 20 * time.Millisecond, Check: byToken}, kills, 1},
		{setup{URL: url, TTL: ttl, Takes: 20 * time.Millisecond, Check: byState}, 0, 1},
		{setup{URL: url, TTL: ttl, Takes: 20 * time.Millisecond, Check: byLock}, 0, 1},
	} {
		name := names[t.Check]
		if t.Tasks, err = t.place(dir); err != nil {
			return err
		}
		r, err := t.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(out, form, name, r.kills, r.pauses, r.tasks, r.done, r.failed, r.begun, r.refused, r.stale, r.twice, fmt.Sprintf("%.1f s", r.took.Seconds()))
		if t.Check == byToken {
			wrong = r.wrong()
		}
	}
	return wrong
}

// names are how the table calls what is compared.
var names = map[check]string{byToken: "state and token", byState: "state alone", byLock: "nothing"}

// place is where the tasks of a trial are.
func (t trial) place(dir string) (string, error) {
	if t.inSQL() {
		return "dispatcher_" + strconv.FormatInt(time.Now().UnixNano(), 36), nil
	}
	return os.MkdirTemp(dir, "tasks-*")
}
