package rules_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// Mutants of Lockers that are right but for a number, a character, or two options together.
func TestMutantsOfDetails(t *testing.T) {
	t.Parallel()
	refuses := func(bad func(key string, s lock.Settings) bool) func(m *lockerMutant) {
		return func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					if bad(key, with(opts)) {
						return nil, lock.ErrInvalid
					}
					return get(ctx, key, opts...)
				}
			})
		}
	}
	shortens := func(of func(s lock.Settings) string, shorter lock.Option) func(m *lockerMutant) {
		return func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					var s lock.Settings
					for _, o := range opts {
						if o != nil {
							o(&s)
						}
					}
					if text := of(s); len(text) > 256 && len([]rune(text)) <= 256 {
						return get(ctx, key, shorter)
					}
					return get(ctx, key, opts...)
				}
			})
		}
	}
	again := func(is func(s lock.Settings) bool) func(m *lockerMutant) {
		return func(m *lockerMutant) {
			m.lease = func(_ context.Context, l *leaseMutant) {
				release := l.release
				l.release = func(ctx context.Context) error {
					err := release(ctx)
					if errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, lock.ErrLost) && is(l.set) {
						return nil
					}
					return err
				}
			}
		}
	}
	closes := func() func(m *lockerMutant) {
		var n atomic.Int32
		return func(m *lockerMutant) {
			n.Store(0)
			m.close = func() error {
				if n.Add(1) > 2 {
					return nil
				}
				return m.Client.Close()
			}
		}
	}
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule, says string
		change     func(m *lockerMutant)
	}{
		"a maximum hold has whole milliseconds": {"MaxHoldEnds", "had not ended", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					return get(ctx, key, rewritten(opts, func(s *lock.Settings) { s.MaxHold = s.MaxHold.Truncate(time.Millisecond) })...)
				}
			})
		}},
		"owners have 256 characters": {"OwnerRefused", "in fewer characters", shortens(func(s lock.Settings) string { return s.Owner }, lock.WithOwner("shorter"))},
		"an owner that is refused is shown": {"OwnerRefused", "the error shows the owner", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					l, err := get(ctx, key, opts...)
					if s := (lock.Settings{}); errors.Is(err, lock.ErrInvalid) {
						for _, o := range opts {
							if o != nil {
								o(&s)
							}
						}
						err = fmt.Errorf("owner %s: %w", s.Owner, err)
					}
					return l, err
				}
			})
		}},
		"labels have 256 characters": {"LabelRefused", "in fewer characters", shortens(func(s lock.Settings) string { return s.Label }, lock.WithLabel("shorter"))},
		"a label is not empty": {"LabelRefused", "expected a lease", func(m *lockerMutant) {
			m.both(func(get engine.Getter) engine.Getter {
				return func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					for _, o := range opts {
						if s := (lock.Settings{Label: "none"}); o != nil {
							if o(&s); s.Label == "" {
								return nil, lock.ErrInvalid
							}
						}
					}
					return get(ctx, key, opts...)
				}
			})
		}},
		"the replacement character is no text": {"LabelRefused", "expected a lease", refuses(func(_ string, s lock.Settings) bool { return strings.ContainsRune(s.Label, '\ufffd') })},
		"keys have no line separator":          {"KeysAccepted", "was refused", refuses(func(key string, _ lock.Settings) bool { return strings.ContainsRune(key, '\u2028') })},
		"keys have no private characters":      {"KeysAccepted", "was refused", refuses(func(key string, _ lock.Settings) bool { return strings.ContainsAny(key, "\ue000\U0010ffff") })},
		"a second release of an owner's limited hold is well": {"ReleaseTwice", "expected an error that matches ErrNotHeld", again(func(s lock.Settings) bool {
			return s.Owner != "" && s.MaxHold > 0 && s.Label == ""
		})},
		"a second release of an owner's hold without renewal is well": {"ReleaseTwice", "expected an error that matches ErrNotHeld", again(func(s lock.Settings) bool {
			return s.Owner != "" && s.NoRenewal
		})},
		"Close ends 50 waits at once, the rest in a while": {"CloseEndsWaits", "after the Close of its Locker", func(m *lockerMutant) {
			var waiting atomic.Int32
			m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
				late := waiting.Add(1) > 50
				defer waiting.Add(-1)
				l, err := m.Client.Acquire(ctx, key, opts...)
				if late && errors.Is(err, lock.ErrClosed) {
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Second):
					}
				}
				return l, err
			}
		}},
		"a third Close returns at once": {"CloseTwice", "it must wait for the first", func(m *lockerMutant) { closes()(m) }},
		"owners wait in lines by the text of key and owner": {"IndependentKeys", "for which another owner waits", func() func(m *lockerMutant) {
			var mu sync.Mutex
			lines := map[string]chan struct{}{}
			return func(m *lockerMutant) {
				m.acquire = func(ctx context.Context, key string, opts ...lock.Option) (lock.Lease, error) {
					name := key + with(opts).Owner
					mu.Lock()
					if lines[name] == nil {
						lines[name] = make(chan struct{}, 1)
					}
					line := lines[name]
					mu.Unlock()
					select {
					case line <- struct{}{}:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					defer func() { <-line }()
					return m.Client.Acquire(ctx, key, opts...)
				}
			}
		}()},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			mustSay(t, wrapped(func(m *lockerMutant, _ backend.Backend) { c.change(m) }), c.rule, c.says)
		})
	}
	all.Wait()
}

// detailed is a memory backend of which some calls are changed.
type detailed struct {
	wrapper
	try      func(ctx context.Context, req backend.Request) (backend.Grant, error)
	renew    func(ctx context.Context, h backend.Hold) (backend.Validity, error)
	handOver func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error)
	last     func(ctx context.Context) (uint64, error)
}

func (d *detailed) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	return d.try(ctx, req)
}

func (d *detailed) Renew(ctx context.Context, h backend.Hold) (backend.Validity, error) {
	return d.renew(ctx, h)
}

func (d *detailed) HandOver(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
	return d.handOver(ctx, from, to)
}

func (d *detailed) LastToken(ctx context.Context) (uint64, error) { return d.last(ctx) }

func TestMutantsOfDetailsOfBackends(t *testing.T) {
	t.Parallel()
	holder := func(change func(h *backend.Holder)) func(*detailed) {
		return func(d *detailed) {
			try := d.try
			d.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
				change(&req.Holder)
				return try(ctx, req)
			}
		}
	}
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule, says string
		change     func() func(*detailed)
	}{
		"the error of a hand-over shows the owner": {"NoSecretsShown", "the owner of the successor", func() func(*detailed) {
			return func(d *detailed) {
				handOver := d.handOver
				d.handOver = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
					g, err := handOver(ctx, from, to)
					if err != nil {
						err = fmt.Errorf("%w: for %s", err, to.Owner)
					}
					return g, err
				}
			}
		}},
		"an owner's hold that is renewed beside another is kept for too short": {"ServerOutlivesD", "beside another hold of its owner", func() func(*detailed) {
			return func(d *detailed) {
				renew := d.renew
				d.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
					ttl := h.TTL
					if rec, err := ability[backend.Inspector](d.Backend).Inspect(ctx, h.Key); err == nil && rec.Holds > 1 {
						h.TTL -= ttl / 10
					}
					v, err := renew(ctx, h)
					v.For = backend.ValidFor(ttl)
					return v, err
				}
			}
		}},
		"an owner's tenth hold has another token": {"ReentrantLimit", "expected that of the first", func() func(*detailed) {
			return func(d *detailed) {
				try := d.try
				d.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
					g, err := try(ctx, req)
					if g.Holds >= 10 {
						g.Token++
					}
					return g, err
				}
			}
		}},
		"the holder's process has 16 bits":   {"InspectShows", "pid 65535", func() func(*detailed) { return holder(func(h *backend.Holder) { h.PID &= 0xffff }) }},
		"the holder's host is in lower case": {"InspectShows", "example.com", func() func(*detailed) { return holder(func(h *backend.Holder) { h.Host = strings.ToLower(h.Host) }) }},
		"the holder's host has 63 bytes at most": {"ListShowsHeldKeys", "Beside-It., ", func() func(*detailed) {
			return holder(func(h *backend.Holder) { h.Host = h.Host[:min(len(h.Host), 63)] })
		}},
		"a renewal that is a little late brings the hold back": {"RenewNeverResurrects", "had run out 1ms ago", func() func(*detailed) {
			var ends sync.Map // by id
			return func(d *detailed) {
				try, renew := d.try, d.renew
				d.try = func(ctx context.Context, req backend.Request) (backend.Grant, error) {
					g, err := try(ctx, req)
					if err == nil {
						ends.Store(req.ID, time.Now().Add(req.TTL))
					}
					return g, err
				}
				d.renew = func(ctx context.Context, h backend.Hold) (backend.Validity, error) {
					v, err := renew(ctx, h)
					end, known := ends.Load(h.ID)
					if errors.Is(err, backend.ErrNotHeld) && known && time.Since(end.(time.Time)) < 5*time.Millisecond {
						g, err := try(ctx, backend.Request{Key: h.Key, ID: h.ID, Owner: h.Owner, TTL: h.TTL})
						return g.Validity, err
					}
					return v, err
				}
			}
		}},
		"the last token knows nothing of what an owner was handed": {"LastTokenCoversAll", "after a key that was handed over", func() func(*detailed) {
			var mu sync.Mutex
			var forgotten uint64
			return func(d *detailed) {
				handOver, last := d.handOver, d.last
				d.handOver = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
					g, err := handOver(ctx, from, to)
					mu.Lock()
					defer mu.Unlock()
					if to.Owner != "" {
						forgotten = g.Token
					}
					return g, err
				}
				d.last = func(ctx context.Context) (uint64, error) {
					token, err := last(ctx)
					mu.Lock()
					defer mu.Unlock()
					if token == forgotten {
						token--
					}
					return token, err
				}
			}
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) {
			cfg, change := memory(), c.change()
			healthy := cfg.OpenBackend
			cfg.OpenBackend = func(ctx context.Context) (backend.Backend, error) {
				b, err := healthy(ctx)
				if err != nil {
					return nil, err
				}
				d := &detailed{
					wrapper: wrapper{b}, try: b.Try, renew: b.Renew,
					handOver: ability[backend.HandOverer](b).HandOver, last: ability[backend.TokenTeller](b).LastToken,
				}
				change(d)
				return d, nil
			}
			mustSay(t, cfg, c.rule, c.says)
		})
	}
	all.Wait()
}
