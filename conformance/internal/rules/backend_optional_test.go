package rules_test

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	memlock "github.com/mortiselock/lock/memory"
)

// optionalMutant breaks an ability.
type optionalMutant struct {
	*mutant
	watch   func(ctx context.Context, key string) (<-chan backend.Hint, error)
	inspect func(r backend.Record) backend.Record // changes what is shown, where something is
	force   func(ctx context.Context, key string, token uint64) error
	batch   func([]backend.Renewal) []backend.Renewal
}

func (m optionalMutant) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	if m.watch != nil {
		return m.watch(ctx, key)
	}
	return m.Watcher.Watch(ctx, key)
}

func (m optionalMutant) Inspect(ctx context.Context, key string) (backend.Record, error) {
	r, err := m.Inspector.Inspect(ctx, key)
	if m.inspect != nil && err == nil {
		r = m.inspect(r)
	}
	return r, err
}

func (m optionalMutant) ForceRelease(ctx context.Context, key string, token uint64) error {
	if m.force != nil {
		return m.force(ctx, key, token)
	}
	return m.ForceReleaser.ForceRelease(ctx, key, token)
}

func (m optionalMutant) RenewBatch(ctx context.Context, holds []backend.Hold) []backend.Renewal {
	out := m.BatchRenewer.RenewBatch(ctx, holds)
	if m.batch != nil {
		out = m.batch(out)
	}
	return out
}

// first is the holder of the first request for the key.
func (s *shared) first(req backend.Request) backend.Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.asked[req.Key]; !ok {
		s.asked[req.Key] = req.Holder
	}
	return s.asked[req.Key]
}

// unlabelledAfter has a key shown without its label when such a hold of an owner was released.
func (m *optionalMutant) unlabelledAfter(such func(h backend.Hold) bool) {
	note := func(what string, h backend.Hold) {
		m.shared.mu.Lock()
		defer m.shared.mu.Unlock()
		m.shared.last[what+h.Key] = h
	}
	m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
		g, err := m.Backend.Try(ctx, req)
		if err == nil && g.Holds == 1 {
			note("outermost ", backend.HoldOf(req))
			note("left ", backend.Hold{Key: req.Key})
		}
		return g, err
	}
	m.release = func(ctx context.Context, h backend.Hold) error {
		err := m.Backend.Release(ctx, h)
		if err == nil && h.Owner != "" && such(h) {
			note("left ", h)
		}
		return err
	}
	m.inspect = func(r backend.Record) backend.Record {
		if m.shared.lastOf("left "+r.Key).Owner != "" {
			r.Holder.Label = ""
		}
		return r
	}
}

func TestMutantOptions(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(m *optionalMutant)
	}{
		"watch signals nothing": {"WatchBeforeReturn", func(m *optionalMutant) {
			m.watch = func(context.Context, string) (<-chan backend.Hint, error) { return make(chan backend.Hint), nil }
		}},
		"watch never ends": {"WatchEndsWithContext", func(m *optionalMutant) {
			m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
				go func() { time.Sleep(20 * time.Second) }()
				return m.Watcher.Watch(ctx, key)
			}
		}},
		"the release by an owner is not signalled": {"WatchBeforeReturn WaiterWakes", func(m *optionalMutant) {
			m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
				if m.shared.lastOf(key).Owner != "" {
					return make(chan backend.Hint), nil
				}
				return m.Watcher.Watch(ctx, key)
			}
		}},
		"the release of what was renewed is not signalled": {"WatchBeforeReturn", func(m *optionalMutant) {
			m.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
				m.shared.mu.Lock()
				m.shared.last["renewed "+h.Key] = h
				m.shared.mu.Unlock()
				return m.Backend.Renew(ctx, h)
			}
			m.watch = func(ctx context.Context, key string) (<-chan backend.Hint, error) {
				hints := make(chan backend.Hint, 1)
				signals, err := m.Watcher.Watch(ctx, key)
				go func() {
					for {
						select {
						case hint := <-signals:
							if m.shared.lastOf("renewed "+key).Key == "" {
								hints <- hint
							}
						case <-ctx.Done():
							return
						}
					}
				}()
				return hints, err
			}
		}},
		"inspection shows another token": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Token++; return r }
		}},
		"inspection shows fewer waiters than unknown": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Waiters = -2; return r }
		}},
		"inspection shows nothing remaining": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Remaining = 0; return r }
		}},
		"inspection shows less than remains": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Remaining /= 2; return r }
		}},
		"inspection always shows the whole TTL": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Remaining = m.shared.lastOf(r.Key).TTL; return r }
		}},
		"inspection shows no beginning": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Holder.Since = time.Time{}; return r }
		}},
		"inspection shows the beginning in another time zone": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Holder.Since = r.Holder.Since.Add(time.Hour); return r }
		}},
		"inspection shows the time of the look": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Holder.Since = time.Now(); return r }
		}},
		"inspection shows when the owner entered last": {"HolderIsShown", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record {
				m.shared.mu.Lock()
				defer m.shared.mu.Unlock()
				r.Holder.Since = m.shared.since[r.Key]
				return r
			}
		}},
		"the label goes with an inner hold": {"HolderIsShown", func(m *optionalMutant) {
			m.unlabelledAfter(func(h backend.Hold) bool { return h.ID != m.shared.lastOf("outermost "+h.Key).ID })
		}},
		"the label goes with the outermost hold, and not with the last": {"HolderIsShown", func(m *optionalMutant) {
			m.unlabelledAfter(func(h backend.Hold) bool { return h.ID == m.shared.lastOf("outermost "+h.Key).ID })
		}},
		"an owner keeps its label after the last hold": {"HolderIsShown", func(m *optionalMutant) {
			var labels sync.Map // at this client
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if kept, ok := labels.Load(req.Key + req.Owner); ok {
					req.Holder.Label = cmp.Or(req.Holder.Label, kept.(string))
				}
				g, err := m.Backend.Try(ctx, req)
				if err == nil && req.Owner != "" && g.Holds == 1 {
					labels.Store(req.Key+req.Owner, req.Holder.Label)
				}
				return g, err
			}
		}},
		"the host and pid of the first holder are kept": {"HolderIsShown", func(m *optionalMutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				if first := m.shared.first(req); req.Owner == "" {
					req.Holder.Host, req.Holder.PID = first.Host, first.PID
				}
				return m.Backend.Try(ctx, req)
			}
		}},
		"the host of a former holder is kept by one that tells none": {"HolderIsShown", func(m *optionalMutant) {
			m.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				req.Holder.Host = cmp.Or(req.Holder.Host, m.shared.first(req).Host)
				return m.Backend.Try(ctx, req)
			}
		}},
		"inspection shows the id where there is no label": {"NoSecretsShown HolderIsShown", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record {
				r.Holder.Label = cmp.Or(r.Holder.Label, m.shared.lastOf(r.Key).ID.Hex())
				return r
			}
		}},
		"force without looking": {"ForceReleaseByToken", func(m *optionalMutant) {
			m.force = func(ctx context.Context, key string, _ uint64) error { return m.mutant.force(ctx, key) }
		}},
		"inspection counts one hold of its owner": {"InspectShows", func(m *optionalMutant) {
			m.inspect = func(r backend.Record) backend.Record { r.Holds = min(r.Holds, 1); return r }
		}},
		"force needs no token": {"ForceReleaseByToken", func(m *optionalMutant) {
			m.force = func(ctx context.Context, key string, token uint64) error {
				if token == 0 {
					return m.mutant.force(ctx, key)
				}
				return m.ForceReleaser.ForceRelease(ctx, key, token)
			}
		}},
		"a batch is dated by its answer": {"BatchRenewMixed", func(m *optionalMutant) {
			m.batch = func(r []backend.Renewal) []backend.Renewal {
				for i := range r {
					r[i].Validity.Sent = r[i].Validity.Sent.Add(time.Millisecond)
				}
				return r
			}
		}},
		"a batch has the TTL of its first hold": {"BatchRenewMixed", func(m *optionalMutant) {
			m.batch = func(r []backend.Renewal) []backend.Renewal {
				for i := range r {
					if r[i].Err == nil {
						r[i].Validity.For = r[0].Validity.For
					}
				}
				return r
			}
		}},
		"batch in another order": {"BatchRenewMixed", func(m *optionalMutant) {
			m.batch = func(r []backend.Renewal) []backend.Renewal {
				if len(r) > 1 {
					r[0], r[1] = r[1], r[0]
				}
				return r
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			cfg := mutate(func(*mutant) {})
			healthy := cfg.OpenBackend
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := healthy(ctx)
				m := &optionalMutant{mutant: b.(*mutant)}
				c.change(m)
				return m, err
			}
			mustFail(t, cfg, c.rules)
		})
	}
	all.Wait()
}

// queueMutant breaks the queue.
type queueMutant struct {
	backend.Backend
	backend.Queuer
	enqueue  func(backend.Request) backend.Request
	nothing  bool        // instead of a place
	unseen   func() bool // are those who wait
	withdraw func() bool // does nothing, where it reports true
	behind   func(backend.Ticket) bool
	wait     func(backend.Ticket, context.Context) (backend.Grant, error)
}

type ticketMutant struct {
	backend.Ticket
	q *queueMutant
}

func (q *queueMutant) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	if q.enqueue != nil {
		req = q.enqueue(req)
	}
	if q.nothing {
		return nil, nil
	}
	t, err := q.Queuer.Enqueue(ctx, req)
	return ticketMutant{t, q}, err
}

func (q *queueMutant) Inspect(ctx context.Context, key string) (backend.Record, error) {
	rec, err := q.Backend.(backend.Inspector).Inspect(ctx, key)
	if q.unseen != nil && q.unseen() {
		rec.Waiters = 0
	}
	return rec, err
}

func (t ticketMutant) Withdraw(ctx context.Context) error {
	if t.q.withdraw != nil && t.q.withdraw() {
		return nil
	}
	return t.Ticket.Withdraw(ctx)
}

func (t ticketMutant) Behind() bool {
	if t.q.behind != nil {
		return t.q.behind(t.Ticket)
	}
	return t.Ticket.Behind()
}

func (t ticketMutant) Wait(ctx context.Context) (backend.Grant, error) {
	if t.q.wait != nil {
		return t.q.wait(t.Ticket, ctx)
	}
	return t.Ticket.Wait(ctx)
}

func TestMutantQueues(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rules  string
		change func(*queueMutant)
	}{
		"withdrawing does nothing":     {"QueueWithdraw WaiterDeathHarmless", func(q *queueMutant) { q.withdraw = func() bool { return true } }},
		"neither a place nor an error": {"QueueOrder QueueWithdraw QueueAbandoned FairOrder LeavesATurn SilenceIsNotHeld", func(q *queueMutant) { q.nothing = true }},
		"a place's grant has no drift allowance": {"QueueOrder", func(q *queueMutant) {
			q.wait = func(t backend.Ticket, ctx context.Context) (backend.Grant, error) {
				g, err := t.Wait(ctx)
				g.For += g.For / 100
				return g, err
			}
		}},
		"a place's grant is dated ahead": {"QueueOrder", func(q *queueMutant) {
			q.wait = func(t backend.Ticket, ctx context.Context) (backend.Grant, error) {
				g, err := t.Wait(ctx)
				g.Sent = g.Sent.Add(time.Millisecond)
				return g, err
			}
		}},
		"a place's grant counts no hold": {"QueueOrder", func(q *queueMutant) {
			q.wait = func(t backend.Ticket, ctx context.Context) (backend.Grant, error) {
				g, err := t.Wait(ctx)
				g.Holds = 0
				return g, err
			}
		}},
		"a place's grant counts the holder before": {"QueueOrder", func(q *queueMutant) {
			q.wait = func(t backend.Ticket, ctx context.Context) (backend.Grant, error) {
				g, err := t.Wait(ctx)
				if g.Holds > 0 && t.Behind() {
					g.Holds++
				}
				return g, err
			}
		}},
		"withdrawing beside a wait does nothing": {"WithdrawBesideWait", func(q *queueMutant) {
			var waiting atomic.Int32
			q.wait = func(t backend.Ticket, ctx context.Context) (backend.Grant, error) {
				waiting.Add(1)
				defer waiting.Add(-1)
				return t.Wait(ctx)
			}
			q.withdraw = func() bool { return waiting.Load() > 0 }
		}},
		"behind waits for the wait": {"QueueWithdraw", func(q *queueMutant) {
			var waits sync.Map
			q.wait = func(t backend.Ticket, ctx context.Context) (backend.Grant, error) {
				done := make(chan struct{})
				defer close(done)
				waits.Store(t, done)
				return t.Wait(ctx)
			}
			q.behind = func(t backend.Ticket) bool {
				if done, ok := waits.Load(t); ok {
					<-done.(chan struct{})
				}
				return t.Behind()
			}
		}},
		"inspection shows no waiters": {"QueueWithdraw", func(q *queueMutant) { q.unseen = func() bool { return true } }},
		"places last for ever": {"QueueAbandoned", func(q *queueMutant) {
			q.enqueue = func(r backend.Request) backend.Request { r.TTL = time.Hour; return r }
		}},
		"waiting is not waiting": {"QueueOrder FairOrder", func(q *queueMutant) {
			q.wait = func(backend.Ticket, context.Context) (backend.Grant, error) {
				return backend.Grant{Token: 1, Holds: 1, Validity: backend.Validity{Sent: backend.RuntimeClock().Now(), For: time.Second}}, nil
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			store := memlock.NewStore(nil)
			cfg := memory()
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
				q := &queueMutant{Backend: b, Queuer: b.(backend.Queuer)}
				c.change(q)
				return q, err
			}
			mustFail(t, cfg, c.rules)
		})
	}
	all.Wait()
}

// TestPlaceThatNobodyWaitedAtForLong has an Enqueue take so long once that a place before it was passed
// over. It is no mistake of the queue, and the case is tried again.
func TestPlaceThatNobodyWaitedAtForLong(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore(nil)
	cfg := memory()
	cfg.Only = []string{"QueueWithdraw"}
	var places atomic.Int32
	cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
		b, err := memlock.NewBackend(ctx, &memlock.Options{Store: store, Queue: true})
		q := &queueMutant{Backend: b, Queuer: b.(backend.Queuer)}
		q.enqueue = func(req backend.Request) backend.Request {
			if places.Add(1) == 4 {
				time.Sleep(time.Second)
			}
			return req
		}
		q.unseen = func() bool { return places.Load() == 4 }
		return q, err
	}
	virtually(t, func(t *testing.T) {
		rep, err := conformance.Check(t.Context(), cfg)
		require.NoError(t, err)
		for _, r := range rep.Results {
			assert.Equal(t, conformance.Pass, r.Verdict, "%s: %s", r.Rule, r.Evidence)
		}
	})
	assert.Greater(t, places.Load(), int32(4))
}

// polledQueue makes a queue of a backend that counts holds itself.
type polledQueue struct {
	*mutant
	holds func(req backend.Request, holds int) int
}

func (q polledQueue) Enqueue(ctx context.Context, req backend.Request) (backend.Ticket, error) {
	return &polledTicket{q, req}, ctx.Err()
}

type polledTicket struct {
	q   polledQueue
	req backend.Request
}

func (t *polledTicket) Wait(ctx context.Context) (backend.Grant, error) {
	for {
		g, err := t.q.Try(ctx, t.req)
		if !errors.Is(err, backend.ErrHeld) {
			g.Holds = t.q.holds(t.req, g.Holds)
			return g, err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return g, ctx.Err()
		}
	}
}

func (t *polledTicket) Behind() bool { return true }

func (t *polledTicket) Withdraw(ctx context.Context) error {
	if err := t.q.Release(ctx, backend.HoldOf(t.req)); !errors.Is(err, backend.ErrNotHeld) {
		return err
	}
	return nil
}

func TestMutantQueueThatCountsHolds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		holds func(req backend.Request, holds int) int
		judge func(t *testing.T, cfg conformance.Config, rules string)
	}{
		"nothing is wrong": {func(_ backend.Request, holds int) int { return holds }, mustPass},
		"an owner's place counts no hold": {func(req backend.Request, holds int) int {
			if req.Owner != "" {
				return 0
			}
			return holds
		}, mustFail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := mutate(func(m *mutant) {
				m.g = func(g backend.Guarantees) backend.Guarantees { g.Waiting = backend.WaitQueue; return g }
			})
			open := cfg.OpenBackend
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := open(ctx)
				return polledQueue{b.(*mutant), c.holds}, err
			}
			c.judge(t, cfg, "HoldCount")
		})
	}
}
