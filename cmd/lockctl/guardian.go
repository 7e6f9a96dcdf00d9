package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

// guardian looks at the backend beside the suite, so that rules are not blamed for a
// server that has gone, and ends the run when it has gone for good.
type guardian struct {
	b      backend.Backend
	keys   string // begins those that it takes
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu    sync.Mutex
	away  []absence
	cases map[string]absence // when each rule began and ended
	last  error              // of the last look
	full  bool               // the server has refused a connection
}

// absence is a time during which the backend did not answer, or during which a rule
// was tried.
type absence struct{ from, to time.Time }

func (a absence) meets(b absence) bool { return a.from.Before(b.to) && b.from.Before(a.to) }

const (
	lookEvery = time.Second
	lookLimit = 5 * time.Second
	// patience is for how long a backend may be away before a check is given up:
	// longer than a restart.
	patience = 20 * time.Second
)

// errGone is why a check was given up.
var errGone = errors.New("no answer for " + patience.String())

// errFull is why rules could not be tried on a server that answers.
var errFull = errors.New("the server had no connection left")

// refusals are how MySQL and MariaDB say that they, or the account, have no connection
// left. A check needs many; that there are too few is no fault of the lock.
var refusals = regexp.MustCompile(`Error 1040\b|Error 1203\b|Error 1226\b.*max_user_connections`)

// isFull reports whether an error, or the evidence of a rule, tells of such a refusal.
func isFull(text string) bool { return refusals.MatchString(text) }

func watchOver(ctx context.Context, b backend.Backend) *guardian {
	g := &guardian{b: b, keys: checkPrefix + "alive/" + backend.NewID().Hex() + "/", done: make(chan struct{}), cases: map[string]absence{}}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(g.done)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			g.look()
			select {
			case <-tick.C:
			case <-g.ctx.Done():
				return
			}
		}
	}()
	return g
}

// look asks whether the backend answers, and remembers it.
func (g *guardian) look() {
	asked := time.Now()
	err := g.ask()
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.away)
	open := n > 0 && g.last != nil
	g.last = err
	g.full = g.full || err != nil && isFull(err.Error())
	switch {
	case err == nil:
		return
	case !open:
		g.away = append(g.away, absence{asked.Add(-lookEvery), time.Now().Add(lookEvery)})
		return
	}
	g.away[n-1].to = time.Now().Add(lookEvery)
	if time.Since(g.away[n-1].from) > patience {
		g.cancel(fmt.Errorf("%w; the last was: %w", errGone, err))
	}
}

// ask takes a key of its own and gives it back.
func (g *guardian) ask() error {
	limits := g.b.Guarantees()
	ttl := max(limits.MinTTL, time.Second)
	if limits.MaxTTL > 0 {
		ttl = min(ttl, limits.MaxTTL)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		req := backend.Request{Key: g.keys + backend.NewID().Hex(), ID: backend.NewID(), TTL: ttl}
		_, err := g.b.Try(ctx, req)
		if err == nil {
			err = g.b.Release(ctx, backend.HoldOf(req))
		}
		if errors.Is(err, backend.ErrNotHeld) {
			err = nil // it was slow, and has answered
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err() // whatever the client library does
	}
}

// forget leaves nothing of the keys behind, where something would stay.
func (g *guardian) forget() {
	if f, ok := backend.As[backend.Forgetter](g.b); ok {
		ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
		defer cancel()
		_ = f.Forget(ctx, g.keys)
	}
}

// judge returns the result of a rule that has just ended, without a failure that
// may be the server's.
func (g *guardian) judge(r conformance.Result) conformance.Result {
	now := time.Now()
	tried := absence{now.Add(-time.Duration(r.Seconds * float64(time.Second))), now}
	g.mu.Lock()
	g.cases[r.Rule] = tried
	away := g.last != nil
	g.mu.Unlock()
	// Where the server is known to be away, a look would hold up all rules for its limit.
	if unsettled(r) && !away {
		g.look()
	}
	return g.withoutBlame(r)
}

// unsettled reports whether the rule has neither passed nor been left out.
func unsettled(r conformance.Result) bool {
	return r.Verdict == conformance.Fail || r.Verdict == conformance.Inconclusive
}

func (g *guardian) withoutBlame(r conformance.Result) conformance.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != nil {
		g.away[len(g.away)-1].to = time.Now()
	}
	if unsettled(r) && isFull(r.Evidence) {
		g.full = true
		r.Verdict, r.Evidence = conformance.Skipped, errFull.Error()+" while the rule was tried"
	}
	if unsettled(r) && slices.ContainsFunc(g.away, g.cases[r.Rule].meets) {
		r.Verdict, r.Evidence = conformance.Skipped, "the backend did not answer while the rule was tried"
	}
	return r
}

// end stops looking. Its error says that the backend was away during the run, or had no
// connection left.
func (g *guardian) end() error {
	g.cancel(nil)
	<-g.done
	defer g.forget()
	if err := context.Cause(g.ctx); errors.Is(err, errGone) {
		return err
	}
	g.look()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.full:
		return errFull
	case g.last != nil:
		return g.last
	}
	var all time.Duration
	for _, a := range g.away {
		all += a.to.Sub(a.from) - 2*lookEvery
	}
	if len(g.away) > 0 {
		return fmt.Errorf("it was away for about %s", max(all, lookEvery).Round(time.Second))
	}
	return nil
}
