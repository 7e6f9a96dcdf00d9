package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/config"
)

func newMigrateCommand(p *printer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move to another backend",
		Long: `What is needed to move from one backend to another while programs run; the steps
are in docs/migrating.md.`,
		DisableFlagsInUseLine: true,
		RunE: func(*cobra.Command, []string) error {
			return usageError("say what to do, for example lockctl migrate floor --from OLD --to NEW; see lockctl migrate --help")
		},
	}
	cmd.AddCommand(newFloorCommand(p), newStatusCommand(p))
	return cmd
}

// move is from where to where.
type move struct{ from, to, config, locker string }

func (m *move) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&m.from, "from", "", "`url` of the backend to leave")
	cmd.Flags().StringVar(&m.to, "to", "", "`url` of the backend to enter")
	cmd.Flags().StringVar(&m.config, "config", "", "YAML or JSON `file` with a locker that has also, instead of --from and --to (default $LOCK_CONFIG)")
	cmd.Flags().StringVar(&m.locker, "locker", "", "`name` of that locker; may be left out when there is one only")
	cmd.MarkFlagsMutuallyExclusive("from", "config")
	cmd.MarkFlagsMutuallyExclusive("to", "config")
	cmd.DisableFlagsInUseLine = true
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := m.ofLocker(); err != nil {
			return err
		}
		switch {
		case len(args) > 0:
			return usageError("%q is one argument too many; the backends are given by --from and --to", args[0])
		case m.from == "" || m.to == "":
			return usageError("from where to where? For example lockctl %s %s --from file: --to redis://cache:6379", cmd.Parent().Name(), cmd.Name())
		case m.from == m.to:
			return usageError("--from and --to are the same backend")
		}
		return nil
	}
}

// ofLocker takes both backends from a file, where no flag gives them.
func (m *move) ofLocker() error {
	file := cmp.Or(m.config, os.Getenv(config.EnvFile))
	if m.from != "" || m.to != "" || file == "" {
		return nil
	}
	f, err := config.Load(file)
	if err != nil {
		return usageError("%s", plain(err))
	}
	stores, err := f.Stores(m.locker)
	if err != nil {
		return usageError("%s", plain(err))
	}
	if len(stores) < 2 {
		return usageError("%s has no also, which names the backend to enter; add it, or write --from and --to", stores[0].From())
	}
	m.from, m.to = stores[0].URL(), stores[1].URL()
	return nil
}

// client opens the backend of a URL, which the flag gives, for work that may change it.
func client(ctx context.Context, p *printer, flag, url string) (*lock.Client, error) {
	a := address{url: url}
	if err := a.check(p, flag); err != nil {
		return nil, err
	}
	b, err := openBackend(ctx, p, a, backend.OpenConfig{Logger: p.lookLogger()})
	if err != nil {
		return nil, err
	}
	if b.Guarantees().Reach == backend.ReachProcess {
		_ = b.Close()
		return nil, usageError("%s holds nothing outside this process; use file: or a server such as redis://localhost:6379", b.Guarantees().Name)
	}
	c, err := lock.New(b, &lock.Options{TTL: a.ttl, Logger: p.lookLogger()})
	if err != nil {
		return nil, operateError(err, "")
	}
	return c, nil
}

// carried is what migrate floor prints with --json.
type carried struct {
	// Floor is the largest token that the backend to leave has granted: every one of the
	// other is larger from now on.
	Floor uint64 `json:"floor"`
}

func newFloorCommand(p *printer) *cobra.Command {
	var (
		m    move
		json bool
	)
	cmd := &cobra.Command{
		Use:   "floor --from OLD --to NEW",
		Short: "Have the tokens of a new backend go on from those of the old one",
		Long: `Make every token that NEW grants from now on larger than all that OLD has granted, so
that what refuses smaller tokens goes on to work after the move. It holds for the
clients of NEW that run already, too. Run it when OLD grants nothing any more: what
it grants later is not looked at.

It acquires one key of its own in OLD and in NEW for a moment, and reads the last
token of every key of OLD. NEW is told to count on from there, whatever its clock
says: that may write to each of its keys. What is held keeps its token. Where NEW
can't be told all of it, on redlock since a node is away, on mysql since rows are
locked for long, the status is 69: run it again.`,
		Example: `  lockctl migrate floor --from redis://cache:6379 --to etcd://etcd1:2379,etcd2:2379`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal()
			defer stop()
			return unlessSignalled(ctx, m.carry(ctx, p, cmd.OutOrStdout(), json))
		},
	}
	m.register(cmd)
	cmd.Flags().BoolVar(&json, "json", false, "print JSON")
	return cmd
}

// carryLimit bounds the look at all tokens of a backend, and the write to each key of another.
const carryLimit = 5 * time.Minute

func (m *move) carry(ctx context.Context, p *printer, out io.Writer, json bool) error {
	from, err := client(ctx, p, "--from", m.from)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := client(ctx, p, "--to", m.to)
	if err != nil {
		return err
	}
	defer to.Close()
	limited, cancel := context.WithTimeout(ctx, carryLimit)
	defer cancel()
	floor, err := lock.CarryTokens(limited, from, to)
	if err != nil {
		return operateError(err, "")
	}
	if json {
		err = printJSON(out, carried{floor})
	} else {
		_, err = fmt.Fprintf(out, "every token of %s is larger than %d from now on\n", to.Guarantees().Name, floor)
	}
	if err != nil {
		return outputError(err)
	}
	return nil
}
