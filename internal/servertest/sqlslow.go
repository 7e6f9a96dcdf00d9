package servertest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	slowLook = 250 * time.Millisecond
	// slowLeast is longer than any statement of a test may take on purpose.
	slowLeast = 4 * time.Second
	slowMost  = 5 // reports
)

// LogSlowSQL looks at a MariaDB or MySQL server until the test's cleanup, and logs what
// the server was doing whenever it had not answered for four seconds, or had a
// statement under way for so long: who reads a test that failed for its times then
// knows whether the lock was late, or the server. It changes nothing on the server.
func LogSlowSQL(t TB, s *Server) {
	t.Helper()
	db, err := sql.Open("mysql", MySQLAdminDSN(s))
	if err != nil {
		t.Fatalf("servertest: %v", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &slowSQL{db: db}
	var running sync.WaitGroup
	running.Go(func() { w.look(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = db.Close()
		for _, r := range w.reports {
			t.Logf("%s", r)
		}
	})
}

type slowSQL struct {
	db      *sql.DB
	reports []string
}

func (w *slowSQL) look(ctx context.Context) {
	tick := time.NewTicker(slowLook)
	defer tick.Stop()
	var quiet time.Time // until then nothing is reported, as it was just before
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		list, longest, err := w.statements(ctx)
		took := time.Since(asked)
		if ctx.Err() != nil || len(w.reports) >= slowMost || asked.Before(quiet) {
			continue
		}
		switch {
		case took >= slowLeast:
			w.reports = append(w.reports, fmt.Sprintf("%s: the server took %s to list its statements (error: %v); then it had:\n%s",
				asked.Format(time.TimeOnly), took.Round(time.Millisecond), err, list))
		case err == nil && longest >= slowLeast:
			w.reports = append(w.reports, fmt.Sprintf("%s: the server has had a statement under way for %s:\n%s\n%s",
				asked.Format(time.TimeOnly), longest, list, w.transactions(ctx)))
		default:
			continue
		}
		quiet = time.Now().Add(slowLeast)
	}
}

// statements lists what is under way, and how long the oldest has been, in whole
// seconds.
func (w *slowSQL) statements(ctx context.Context) (list string, longest time.Duration, err error) {
	rows, err := w.db.QueryContext(ctx, `SELECT ID, TIME, COALESCE(STATE, ''), LEFT(INFO, 200) FROM information_schema.PROCESSLIST
		WHERE COMMAND IN ('Query', 'Execute') AND INFO IS NOT NULL AND ID <> CONNECTION_ID() ORDER BY TIME DESC LIMIT 30`)
	if err != nil {
		return "", 0, err
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var id, seconds int64
		var state, text string
		if err := rows.Scan(&id, &seconds, &state, &text); err != nil {
			return "", 0, err
		}
		longest = max(longest, time.Duration(seconds)*time.Second)
		fmt.Fprintf(&b, "  connection %d, %d s, %s: %s\n", id, seconds, state, text)
	}
	return b.String(), longest, rows.Err()
}

// transactions is what the storage engine says about those that are open.
func (w *slowSQL) transactions(ctx context.Context) string {
	var kind, name, text string
	if err := w.db.QueryRowContext(ctx, "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &text); err != nil {
		return err.Error()
	}
	_, text, _ = strings.Cut(text, "\nTRANSACTIONS\n")
	text, _, _ = strings.Cut(text, "\nFILE I/O\n")
	return text
}
