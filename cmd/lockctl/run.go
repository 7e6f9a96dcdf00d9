package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

const (
	// openLimit bounds the opening of the backend, and a single attempt.
	openLimit = 10 * time.Second
	// settleLimit bounds the release and the closing together. The lock package
	// has bounds of its own below it.
	settleLimit = 10 * time.Second
)

// tool is lockctl with what it touches.
type tool struct {
	printer               *printer
	open                  func(ctx context.Context, url string, opts *lock.Options) (openLocker, error)
	stdin, stdout, stderr *os.File
	signals               chan os.Signal // nil: those of the process
}

// openLocker is what run needs of a lock.Client.
type openLocker interface {
	lock.Locker
	Guarantees() backend.Guarantees
}

func openClient(ctx context.Context, url string, opts *lock.Options) (openLocker, error) {
	c, err := lock.Open(ctx, url, opts)
	if err != nil {
		return nil, err // not a nil pointer of its type
	}
	return c, nil
}

// run holds the key, runs the command, releases the key, and says how it went.
// Nothing is left held whatever it returns, as far as the server can be reached.
func (t *tool) run(cfg runConfig) error {
	if _, err := lock.ResolveOptions(lock.WithLabel(cfg.label)); err != nil {
		return usageError("%s", plain(err))
	}
	// Before the key is taken, so that a mistyped command does not hold it.
	path, err := lookCommand(cfg.argv[0])
	if err != nil {
		return err
	}
	signals := t.signals
	if signals == nil {
		signals = make(chan os.Signal, 64)
		notify(signals, waitSignals)
		defer signal.Stop(signals)
	}
	renewed := make(chan struct{}, 1)
	held, err := t.acquire(cfg, signals, renewed)
	if err != nil {
		return err
	}

	c := command{
		path: path, argv: cfg.argv,
		env:   environ("LOCK_KEY="+cfg.key, "LOCK_TOKEN="+strconv.FormatUint(held.lease.Token(), 10)),
		files: [3]*os.File{t.stdin, t.stdout, t.stderr},
	}
	if t.signals == nil {
		notify(signals, runSignals)
	}
	s := &supervisor{lease: held.lease, ttl: held.ttl, grace: cfg.grace, signals: signals, renewed: renewed}
	out, err := s.run(c)
	if s.guard != nil {
		defer s.guard.join() // beside the release
	}
	if s.process != nil {
		defer s.process.join()
	}
	if err != nil {
		_ = t.settle(signals, held.release)
		return startError(cfg.argv[0], err)
	}
	if out.lost != nil {
		if out.gone {
			_ = t.settle(signals, held.release)
		}
		return exitWith(exitLost, "the hold on %q was lost: %s; %s; check the backend and what the command has done, then run it again",
			cfg.key, lossReason(out.lost), out.describe(cfg.argv[0]))
	}
	if out.keeper {
		t.printer.warn(fmt.Sprintf("the lock-keeper process of lockctl was killed, and %s with it", filepath.Base(cfg.argv[0])))
	}
	if out.rest {
		t.printer.warn(fmt.Sprintf("processes that %s started may still run, without the lock: they could not be ended", filepath.Base(cfg.argv[0])))
	}
	return t.finish(cfg, held, out, signals)
}

// environ is the environment of the tool with the given settings in place of its
// own ones of these names.
func environ(settings ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(old string) bool {
		name, _, _ := strings.Cut(old, "=")
		return slices.ContainsFunc(settings, func(s string) bool { return strings.HasPrefix(s, name+"=") })
	})
	return append(env, settings...)
}

// finish releases the key after the command ended by itself.
func (t *tool) finish(cfg runConfig, held *hold, out outcome, signals <-chan os.Signal) error {
	err := t.settle(signals, held.release)
	switch {
	case err == nil:
	case errors.Is(err, lock.ErrNotHeld): // ErrLost included
		return exitWith(exitLost, "the hold on %q was lost before the command ended: %s; %s, perhaps beside another holder; check what it has done",
			cfg.key, lossReason(err), out.describe(cfg.argv[0]))
	default:
		t.printer.warn(fmt.Sprintf("the release of %q was not confirmed (%s); others may have to wait for up to %s",
			cfg.key, plain(err), held.ttl))
	}
	if out.status != exitOK {
		return &exitError{code: out.status}
	}
	return nil
}

// settle runs f, which is bounded by itself, and gives up on it when an ending
// signal arrives: the lease then ends by its TTL.
func (t *tool) settle(signals <-chan os.Signal, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	for {
		select {
		case err := <-done:
			return err
		case sig := <-signals:
			if endsWait(sig) {
				return fmt.Errorf("interrupted by %s", sig)
			}
		case <-limit.C:
			return errors.New("no answer in time")
		}
	}
}

// hold is an open Locker with the one lease the tool takes.
type hold struct {
	locker lock.Locker
	lease  lock.Lease
	ttl    time.Duration
	waited *announcement // nil: nothing was waited for
}

// release gives the key back and closes the Locker.
func (h *hold) release() error {
	err := h.lease.Release(context.Background())
	h.close()
	return err
}

func (h *hold) close() {
	if h.waited != nil {
		h.waited.join()
	}
	_ = h.locker.Close()
}

// acquire opens the backend and takes the key. An ending signal ends it: the
// first one waits until nothing is left behind, the second one does not.
func (t *tool) acquire(cfg runConfig, signals <-chan os.Signal, renewed chan<- struct{}) (*hold, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type result struct {
		hold *hold
		err  error
	}
	results := make(chan result, 1)
	go func() {
		h, err := t.openAndAcquire(ctx, cfg, renewed)
		results <- result{h, err}
	}()
	var interrupt os.Signal
	for {
		select {
		case r := <-results:
			if interrupt == nil {
				return r.hold, r.err
			}
			if r.hold != nil {
				_ = t.settle(signals, r.hold.release)
			}
			return nil, interrupted(interrupt, cfg.key)
		case sig := <-signals:
			if !endsWait(sig) {
				continue // meant for the command, which does not run yet
			}
			if interrupt != nil {
				return nil, interrupted(sig, cfg.key)
			}
			interrupt = sig
			cancel()
		}
	}
}

func interrupted(sig os.Signal, key string) error {
	return exitWith(exitSignal+signalNumber(sig), "%s while waiting for %q; the command was not started", sig, key)
}

func (t *tool) openAndAcquire(ctx context.Context, cfg runConfig, renewed chan<- struct{}) (*hold, error) {
	wait, cancel := ctx, context.CancelFunc(func() {})
	if cfg.wait > 0 {
		wait, cancel = context.WithTimeout(ctx, cfg.wait)
	}
	defer cancel()

	options := lock.Options{
		TTL:    cfg.ttl,
		Logger: t.printer.logger(),
		Observer: func(_ context.Context, e lock.Event) {
			if e.Kind == lock.EventRenewed {
				select {
				case renewed <- struct{}{}:
				default:
				}
			}
		},
	}
	locker, err := t.openStore(wait, cfg, cfg.from, options)
	if err == nil && cfg.from.also != nil {
		locker, err = t.openBoth(wait, cfg, locker, options)
	}
	if err != nil {
		return nil, err
	}
	h := &hold{locker: locker, ttl: effectiveTTL(cfg.ttl, locker)}
	if cfg.wait == 0 {
		once, cancelOnce := context.WithTimeout(wait, openLimit)
		defer cancelOnce()
		h.lease, err = locker.TryAcquire(once, cfg.key, lock.WithLabel(cfg.label))
	} else {
		h.waited = t.printer.announce(locker, cfg.key)
		h.lease, err = locker.Acquire(wait, cfg.key, lock.WithLabel(cfg.label))
		h.waited.ended()
		if ctx.Err() == nil && errors.Is(err, lock.ErrHeld) && !errors.As(err, new(*lock.HeldError)) {
			// A queue tells a waiter its place, and not who holds the key: a try does, or gets it.
			once, cancelOnce := context.WithTimeout(ctx, whoLimit)
			defer cancelOnce()
			lease, refusal := locker.TryAcquire(once, cfg.key, lock.WithLabel(cfg.label))
			if refusal == nil || errors.Is(refusal, lock.ErrHeld) {
				h.lease, err = lease, refusal
			}
		}
	}
	if err != nil {
		h.close()
		return nil, acquireError(err, cfg.key, cfg.wait)
	}
	return h, nil
}

// openStore opens the backend at the address.
func (t *tool) openStore(ctx context.Context, cfg runConfig, at address, options lock.Options) (openLocker, error) {
	opening, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	opened := t.printer.opens(at.url)
	locker, err := t.open(opening, at.url, &options)
	opened()
	if err != nil {
		return nil, at.named(acquireError(err, cfg.key, cfg.wait))
	}
	if g := locker.Guarantees(); g.Reach == backend.ReachProcess {
		_ = locker.Close()
		return nil, usageError("%s excludes nobody outside this process; use file: or a server such as redis://localhost:6379", g.Name)
	}
	return locker, nil
}

// openBoth opens the second backend, beside the first.
func (t *tool) openBoth(ctx context.Context, cfg runConfig, first openLocker, options lock.Options) (openLocker, error) {
	if options.TTL == 0 {
		options.TTL = cfg.from.also.ttl
	}
	second, err := t.openStore(ctx, cfg, *cfg.from.also, options)
	if err != nil {
		_ = first.Close()
		return nil, err
	}
	p, err := lock.Both(first, second)
	if err != nil {
		_ = first.Close()
		_ = second.Close()
		return nil, usageError("%s", plain(err))
	}
	return &twoStores{p, [2]lock.Locker{first, second}}, nil
}

// twoStores is a Locker on two backends.
type twoStores struct {
	*lock.Pair
	each [2]lock.Locker
}

// whoLimit bounds the last question of a wait that has ended: who holds the key.
const whoLimit = 2 * time.Second

// effectiveTTL is the TTL that the Locker uses: its default, where none was asked for.
func effectiveTTL(asked time.Duration, l openLocker) time.Duration {
	if asked != 0 {
		return asked
	}
	return l.Guarantees().NearestTTL(lock.DefaultTTL)
}

// checkURL refuses unknown schemes in words for users of the tool, and keeps the
// password of the URL out of everything that is printed.
func checkURL(p *printer, raw string) *exitError {
	u, err := backend.ParseURL(raw)
	if err != nil {
		return usageError("%s", plain(err))
	}
	for _, secret := range []string{u.Password, u.Query.String("sentinel_password", "")} {
		p.hide(u.String(), secret, url.PathEscape(secret), url.QueryEscape(secret))
	}
	if rest, ok := strings.CutPrefix(raw[len(u.Scheme):], "://"); ok && u.HasPassword {
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			_, escaped, _ := strings.Cut(rest[:i], ":")
			p.hide(u.String(), escaped)
		}
	}
	known := backend.DefaultMux.Schemes()
	if !slices.Contains(known, u.Scheme) {
		known = slices.DeleteFunc(known, func(s string) bool { return s == "mem" }) // refused later
		return usageError("unknown URL scheme %q; lockctl knows %s", u.Scheme, strings.Join(known, ", "))
	}
	return nil
}
