package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/report"
)

// checkConfig is what lockctl check was asked to do.
type checkConfig struct {
	source source
	format string
	output string
	only   []string
	ttl    time.Duration
	budget time.Duration
	seed   uint64
}

var checkFormats = map[string]func(io.Writer, conformance.Report) error{
	"text":     func(w io.Writer, r conformance.Report) error { _, err := io.WriteString(w, r.String()); return err },
	"json":     func(w io.Writer, r conformance.Report) error { return printJSON(w, r) },
	"markdown": report.Markdown,
	"html":     report.HTML,
}

func newCheckCommand(p *printer) *cobra.Command {
	cfg := checkConfig{}
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Prove that a backend keeps what it promises",
		Long: `Run the conformance suite against a live backend: mutual exclusion, owner-only
release, expiry, renewal, the loss signal, fencing tokens and all that follows, with
injected faults, and with processes that are killed and stopped.

It uses keys of its own that begin with lockctl-check/, and gives them back. It adds
load: some thousand requests a second for about the length of --budget.

The report goes to the standard output, the progress to standard error. The exit
status is 0 only when every promise that could be tried was kept, and 1 when a rule
was broken or nothing could be tried. It is 69 when the backend cannot be reached
or stops answering half-way.`,
		Example: `  lockctl check --url redis://cache:6379
  lockctl check --url redis://cache:6379 --format html --output report.html
  lockctl check --config locks.yaml --locker jobs --only exclusion,FencedRegister`,
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := cmd.Flags()
			switch {
			case checkFormats[cfg.format] == nil:
				return usageError("--format %q; it is text, json, markdown or html", cfg.format)
			case flags.Changed("ttl") && cfg.ttl <= 0:
				return usageError("--ttl %s; it must be positive, for example 1s", cfg.ttl)
			case cfg.budget <= 0:
				return usageError("--budget %s; it must be positive, for example 60s", cfg.budget)
			}
			return check(p, cfg, cmd.OutOrStdout())
		},
	}
	cfg.source.register(cmd)
	f := cmd.Flags()
	f.StringVar(&cfg.format, "format", "text", "text, json, markdown or html")
	f.StringVarP(&cfg.output, "output", "o", "", "`file` for the report (default standard output)")
	f.StringSliceVar(&cfg.only, "only", nil, "`rules` or subjects to run, with commas (default all)")
	f.DurationVar(&cfg.ttl, "ttl", 0, "TTL of the leases that are left to expire (default the smallest honest one)")
	f.DurationVar(&cfg.budget, "budget", time.Minute, "about how long to run")
	f.Uint64Var(&cfg.seed, "seed", 0, "seed of the random choices, to repeat a run")
	return cmd
}

// checkTTL is the TTL of backends whose TTL is chosen at opening. It is short, since
// the suite waits for leases to end.
const checkTTL = 4 * time.Second

// checkPrefix begins every key of a check.
const checkPrefix = "lockctl-check/"

// checkOf is the suite's configuration for a URL. The processes that the suite
// starts make it again from the URL.
func checkOf(url string) conformance.Config {
	return conformance.Config{
		OpenBackend: func(ctx context.Context) (backend.Backend, error) {
			return backend.DefaultMux.Open(ctx, url, backend.OpenConfig{TTL: checkTTL})
		},
		Child:     url,
		KeyPrefix: checkPrefix,
		Tidy:      true,
	}
}

func check(p *printer, cfg checkConfig, stdout io.Writer) error {
	from, err := cfg.source.resolve(p)
	if err != nil {
		return err
	}
	out := stdout
	if cfg.output != "" {
		file, err := os.Create(cfg.output)
		if err != nil {
			return usageError("--output %s: %v", cfg.output, cause(err))
		}
		defer file.Close()
		out = file
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	first, err := openBackend(ctx, p, from)
	if err != nil {
		return err
	}
	defer first.Close()
	alive := watchOver(ctx, first)
	suite := checkOf(from.url)
	suite.TTL, suite.Budget, suite.Only, suite.Seed = cfg.ttl, cfg.budget, cfg.only, cfg.seed
	rules := len(conformance.Rules())
	progress := newProgress(p.w, rules)
	if len(cfg.only) > 0 {
		progress.total = 0
	}
	suite.Progress = func(r conformance.Result) { progress.show(alive.judge(r)) }
	rep, err := conformance.Check(alive.ctx, suite)
	progress.end()
	gone := alive.end()
	if err != nil {
		return usageError("%s", plain(err))
	}
	for i, r := range rep.Results {
		rep.Results[i] = alive.withoutBlame(r)
	}
	if err := checkFormats[cfg.format](out, rep); err != nil {
		return exitWith(exitInternal, "writing the report: %v", err)
	}
	switch {
	case gone != nil:
		return exitWith(exitUnavailable, "the backend stopped answering during the check (%s); what was not tried by then says nothing; look at the server and start again", plain(gone))
	case ctx.Err() != nil:
		return exitWith(exitSignal+2, "interrupted; the check is not complete")
	case !rep.OK():
		return exitWith(exitFree, "%s: %s %s", rep.Name, report.Verdict(rep), rep.Counts())
	}
	return nil
}

// guardian looks at the backend beside the suite, so that rules are not blamed for a
// server that has gone, and ends the run when it has gone for good.
type guardian struct {
	b      backend.Backend
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu    sync.Mutex
	away  []absence
	cases map[string]absence // when each rule began and ended
	last  error              // of the last look
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

func watchOver(ctx context.Context, b backend.Backend) *guardian {
	g := &guardian{b: b, done: make(chan struct{}), cases: map[string]absence{}}
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
		req := backend.Request{Key: checkPrefix + "alive/" + backend.NewID().Hex(), ID: backend.NewID(), TTL: ttl}
		_, err := g.b.Try(ctx, req)
		if err == nil {
			err = g.b.Release(ctx, backend.HoldOf(req))
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

// judge returns the result of a rule that has just ended, without a failure that
// may be the server's.
func (g *guardian) judge(r conformance.Result) conformance.Result {
	now := time.Now()
	tried := absence{now.Add(-time.Duration(r.Seconds * float64(time.Second))), now}
	g.mu.Lock()
	g.cases[r.Rule] = tried
	g.mu.Unlock()
	if r.Verdict == conformance.Fail {
		g.look()
	}
	return g.withoutBlame(r)
}

func (g *guardian) withoutBlame(r conformance.Result) conformance.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.Verdict == conformance.Fail && slices.ContainsFunc(g.away, g.cases[r.Rule].meets) {
		r.Verdict, r.Evidence = conformance.Skipped, "the backend did not answer while the rule was tried"
	}
	return r
}

// end stops looking. Its error says that the backend was away during the run.
func (g *guardian) end() error {
	g.cancel(nil)
	<-g.done
	if err := context.Cause(g.ctx); errors.Is(err, errGone) {
		return err
	}
	g.look()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last != nil {
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
