package row

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/mysql/internal/wire"
)

// addressWatch sees to it that no hold and no wait outlives the place of its server: when
// the address leads to another one, the others lock their rows there.
type addressWatch struct {
	looks sync.WaitGroup

	mu      sync.Mutex
	looking bool
	begun   backend.Instant // of the last look
}

// marksAtOnce is how many holds one statement asks about.
const marksAtOnce = 100

// lookAtAddress looks in the background whether the address still leads to where the
// holds and the waits are, unless somebody has just done so: a renewal and a wait ask, and
// wait for nothing.
func (b *Backend) lookAtAddress(ttl time.Duration) {
	a := &b.address
	now := b.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.looking || a.begun != 0 && now.Sub(a.begun) < checkPeriod(ttl) || b.life.Err() != nil {
		return
	}
	a.looking, a.begun = true, now
	a.looks.Go(func() {
		ctx, cancel := context.WithTimeout(b.life, ttl/2)
		defer cancel()
		gone := b.elsewhere(ctx)
		a.mu.Lock()
		a.looking = false
		a.mu.Unlock()
		var all sync.WaitGroup
		for h, s := range gone {
			s.left.Store(true)
			all.Go(func() { b.loseElsewhere(ctx, h, s) })
		}
		all.Wait()
	})
}

// checkPeriod is how often the address is looked at for holds of a TTL.
func checkPeriod(ttl time.Duration) time.Duration { return ttl / 4 }

// checkAddress refuses a session whose server the address does not lead to any more,
// before a row that it has locked is granted. A session for which that was seen a check
// period ago or later needs no look. Without an answer there is no grant.
func (b *Backend) checkAddress(ctx context.Context, s *session, ttl time.Duration) error {
	now := b.clock.Now()
	if now.Sub(s.checked) <= checkPeriod(ttl) {
		return nil
	}
	conn, err := b.sessions.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var user sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK('"+s.mark+"')").Scan(&user); err != nil {
		return wire.Unsent(err)
	}
	if uint64(user.Int64) != s.id {
		return errElsewhere
	}
	s.checked = now
	return nil
}

// stillHere ends a wait on a server that has been left.
func (b *Backend) stillHere(ctx context.Context, s *session) error {
	if s.left.Load() {
		return errElsewhere
	}
	takesWrites, _, err := s.first(ctx, "SELECT "+wire.Writable)
	if err == nil && takesWrites != "1" {
		err = wire.ErrReadOnly
	}
	return err
}

// elsewhere are the holds and waits whose sessions are unknown to the server that a new
// connection leads to: a session has its mark as a named lock for as long as it lives.
// Without an answer nothing is known.
func (b *Backend) elsewhere(ctx context.Context) map[*hold]*session {
	var holds []*hold
	var sessions []*session
	b.mu.Lock()
	for _, h := range b.holds {
		s := h.at.Load()
		if s == nil {
			s = h.waits.Load()
		}
		if s != nil {
			holds, sessions = append(holds, h), append(sessions, s)
		}
	}
	b.mu.Unlock()
	conn, err := b.sessions.db.Conn(ctx) // a new one, which is closed when it is given back
	if err != nil {
		return nil
	}
	defer conn.Close()
	gone := map[*hold]*session{}
	for from := 0; from < len(holds); from += marksAtOnce {
		some := sessions[from:min(from+marksAtOnce, len(sessions))]
		marks := make([]string, len(some))
		users := make([]sql.NullInt64, len(some))
		scan := make([]any, len(some))
		for i, s := range some {
			marks[i], scan[i] = "IS_USED_LOCK('"+s.mark+"')", &users[i]
		}
		if conn.QueryRowContext(ctx, "SELECT "+strings.Join(marks, ", ")).Scan(scan...) != nil {
			break
		}
		for i, user := range users {
			if !user.Valid {
				gone[holds[from+i]] = some[i]
			}
		}
	}
	return gone
}

// loseElsewhere ends a hold whose session lives, and is not where the address leads to.
// One that does not live is left to its next heartbeat, which knows why.
func (b *Backend) loseElsewhere(ctx context.Context, h *hold, s *session) {
	if h.at.Load() == nil {
		return // it waits, and looks by itself
	}
	if h.take(ctx) != nil {
		return
	}
	defer h.leave()
	if h.phase != phaseHeld || h.s != s {
		return
	}
	if user, _, err := s.first(ctx, "SELECT IS_USED_LOCK('"+s.mark+"')"); err != nil || user == "" {
		return
	}
	b.lose(h, b.lossOf(ctx, h, errElsewhere))
}

// leaveServer closes the connections that nobody uses, after one has shown that the
// server is not the primary any more.
func (b *Backend) leaveServer() {
	if b.sessions != nil {
		b.sessions.forget()
	}
	b.control.SetMaxIdleConns(-1)
	b.control.SetMaxIdleConns(b.controlSize)
}
