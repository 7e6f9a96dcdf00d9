package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
	"github.com/mortiselock/lock/conformance/report"
	"github.com/mortiselock/lock/internal/guarded"
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
	"text":     checkText,
	"json":     func(w io.Writer, r conformance.Report) error { return printJSON(w, r) },
	"markdown": report.Markdown,
	"html":     report.HTML,
}

// checkText prints the report of the suite, and in one sentence what it means.
func checkText(w io.Writer, r conformance.Report) error {
	_, err := io.WriteString(w, r.String()+r.Verdict()+"\n")
	return err
}

func newCheckCommand(p *printer) *cobra.Command {
	cfg := checkConfig{}
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Prove that a backend keeps what it promises",
		Long: `Run the conformance suite against a live backend: mutual exclusion, owner-only
release, expiry, renewal, the loss signal, fencing tokens and all that follows, with
injected faults, with processes that are killed and stopped, and with a network that
is cut and falls silent, unless the URL has TLS, Sentinel or several members.

It uses keys of its own that begin with lockctl-check/, and gives them back. Guarded
writes go to values of its own in the same store, which it removes: on MySQL a table
lock_values_..., for which the user needs CREATE and DROP. It adds load: some thousand
requests a second for about the length of --budget.

The report goes to the standard output, the progress to standard error. The exit
status is 0 only when every promise that could be tried was kept, and 1 when a rule
was broken or nothing could be tried. The verdict names the rules that apply and could
not be tried. It is 75 when nothing was broken, but this machine or the server was too
slow for a verdict on every rule: check again when it is calmer. It is 69 when the
backend cannot be reached, stops answering half-way, or has no connection left.`,
		Example: `  lockctl check --url redis://cache:6379
  lockctl check --url redis://cache:6379 --format html --output report.html
  lockctl check --config locks.yaml --locker jobs --only exclusion,FencedRegister`,
		Args: func(_ *cobra.Command, args []string) error { // what an argument has may be a password
			if len(args) > 0 {
				return usageError("check takes no arguments: the backend is given with --url, rules with --only")
			}
			return nil
		},
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
		Proxy:     proxyOf(url),
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
	ctx, stop := untilSignal()
	defer stop()
	rep, gone, err := prove(ctx, p, cfg, from)
	if err != nil {
		return unlessSignalled(ctx, err)
	}
	if err := checkFormats[cfg.format](out, rep); err != nil {
		return outputError(err)
	}
	status, signalled := signalStatus(ctx)
	switch {
	case signalled:
		return exitWith(status, "%v. %s %s", context.Cause(ctx), rep.Verdict(), rep.Counts())
	case errors.Is(gone, errFull) && rep.Counts().Fail == 0:
		return exitWith(exitUnavailable, "%v during the check; what was not tried says nothing; raise max_connections (a check of MySQL with mode=row needs about 200), or try fewer rules at a time with --only, and start again", gone)
	case gone != nil && !errors.Is(gone, errFull):
		return wentAway(gone)
	case rep.Counts().Fail == 0 && rep.Counts().Inconclusive > 0:
		return exitWith(exitHeld, "%s: %s %s", rep.Name, rep.Verdict(), rep.Counts())
	case !rep.OK():
		return exitWith(exitFree, "%s: %s %s", rep.Name, rep.Verdict(), rep.Counts())
	}
	return nil
}

// wentAway is the error of a check whose server went away under it.
func wentAway(why error) *exitError {
	return exitWith(exitUnavailable, "the backend stopped answering during the check (%s); what was not tried by then says nothing; look at the server and start again", plain(why))
}

// prove runs the suite. gone says that the backend stopped answering meanwhile, or is
// errFull.
func prove(ctx context.Context, p *printer, cfg checkConfig, from address) (rep conformance.Report, gone, err error) {
	first, err := openBackend(ctx, p, from, backend.OpenConfig{Logger: p.logger()})
	if err != nil {
		return rep, nil, err
	}
	defer first.Close()
	if err := enoughRoom(ctx, first, cfg); err != nil {
		return rep, nil, err
	}
	suite := checkOf(from.url)
	suite.TTL, suite.Budget, suite.Only, suite.Seed = cfg.ttl, cfg.budget, cfg.only, cfg.seed
	var written guarded.Values
	var unwritten error
	if triesGuardedWrites(first.Guarantees(), cfg.only) {
		if written, unwritten = openValues(ctx, first); unwritten != nil {
			p.warn(fmt.Sprintf("guarded writes are not tried: %v", unwritten))
		}
	}
	if written != nil {
		suite.Guarded = &conformance.GuardedWrite{Write: written.Write, Read: written.Read}
		if several, ok := written.(guarded.Opener); ok {
			suite.Guarded.Open = several.Open
		}
		defer func() {
			if left := removeValues(written); left != nil && (gone == nil || errors.Is(gone, errFull)) {
				p.warn(fmt.Sprintf("what the guarded writes of the check have left stays: %s", plain(left)))
			}
		}()
	}
	alive := watchOver(ctx, first)
	progress := newProgress(p.w, chosen(cfg.only))
	suite.Progress = func(r conformance.Result) { progress.show(alive.judge(r)) }
	rep, err = conformance.Check(alive.ctx, suite)
	progress.end()
	gone = alive.end()
	switch {
	case errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrPermanent): // it was there a moment ago
		return rep, nil, wentAway(err)
	case err != nil:
		return rep, nil, usageError("%s", plain(err))
	}
	for i, r := range rep.Results {
		rep.Results[i] = explained(alive.withoutBlame(r), first, unwritten)
	}
	switch {
	case ctx.Err() != nil:
		rep.Incomplete = "the check was interrupted"
	case errors.Is(gone, errFull):
		rep.Incomplete = gone.Error()
	case gone != nil:
		rep.Incomplete = "the server stopped answering"
	}
	return rep, gone, nil
}

// chosen counts the rules that are asked for.
func chosen(only []string) (n int) {
	for _, r := range conformance.Rules() {
		if len(only) == 0 || slices.Contains(only, r.Name) || slices.Contains(only, r.Subject) {
			n++
		}
	}
	return n
}

// connectionsNeeded is about how many connections a whole check opens where each hold and
// each waiter has one of its own.
const connectionsNeeded = 200

// enoughRoom refuses a whole check where each hold needs a connection and the server has
// not enough of them left.
func enoughRoom(ctx context.Context, b backend.Backend, cfg checkConfig) error {
	server, ok := b.(interface {
		Room(ctx context.Context) (int, error)
	})
	if !ok || len(cfg.only) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	// Where it cannot be asked, the check finds out.
	if room, err := server.Room(ctx); err == nil && room < connectionsNeeded {
		return exitWith(exitUnavailable, "the server takes %d more connections, and a check of MySQL with mode=row needs about %d; raise max_connections (and max_user_connections), or try fewer rules at a time with --only", room, connectionsNeeded)
	}
	return nil
}

// reasons are why lockctl check does not try a rule, where the words of the suite are for
// those who write tests.
var reasons = map[string]string{
	"Linearizable":            noJudge,
	"LinearizableUnderFaults": noJudge,
	"WaiterSessionCheck":      noEnd,
	"NextSessionHolds":        noEnd,
	"PoolClean":               "does not apply: it is about a client that a program gives to its lock, and lockctl opens one by URL",
}

const noEnd = "needs a way to end the session of one client alone, as the tests of the backend have"

const noJudge = "needs a library for tests, which lockctl does not contain; a test with package conformance/linear tries it"

const network = "network" // the subject

// explained puts into words for people who have a URL and no test why a rule was not
// tried.
func explained(r conformance.Result, b backend.Backend, unwritten error) conformance.Result {
	const forTests = "needs Config."
	if r.Verdict == conformance.NotClaimed {
		r.Evidence, _, _ = strings.Cut(r.Evidence, "; not tried: "+forTests)
		return r
	}
	if r.Verdict == conformance.Pass && strings.HasPrefix(r.Evidence, "without Config.") {
		r.Evidence = "" // what only a test can ask besides
	}
	_, queues := backend.As[backend.Queuer](b)
	_, notifies := backend.As[backend.LossNotifier](b)
	switch reason, ok := reasons[r.Rule]; {
	case r.Verdict != conformance.Skipped || !strings.HasPrefix(r.Evidence, forTests):
	case r.Rule == "NextSessionHolds" && !notifies:
		r.Evidence = "the backend does not implement backend.LossNotifier"
	case r.Rule == "WaiterSessionCheck" && !queues:
		r.Evidence = "the backend does not implement backend.Queuer"
	case ok:
		r.Evidence = reason
	case r.Subject == network:
		r.Evidence = "needs a server that is reached at the one address of the URL, without TLS: a network that can be disturbed is put before it"
	case unwritten != nil && r.Subject == guardedWrites:
		r.Evidence = unwritten.Error()
	}
	return r
}
