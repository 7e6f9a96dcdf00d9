package main

import (
	"context"
	"io"
	"os"
	"os/signal"
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
	first, err := openBackend(ctx, from, p.logger())
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
	switch {
	case gone != nil:
		rep.Incomplete = "the server stopped answering"
	case ctx.Err() != nil:
		rep.Incomplete = "the check was interrupted"
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
