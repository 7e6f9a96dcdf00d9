package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// operateLimit bounds one look or one forced release.
const operateLimit = 10 * time.Second

// operation is what the commands for operators have in common.
type operation struct {
	source
	json    bool
	address address
	printer *printer
	out     io.Writer
}

// operate makes a command that opens the backend, does something with it, and
// closes it.
func operate(p *printer, cmd *cobra.Command, do func(ctx context.Context, o *operation, b backend.Backend, args []string) error) *cobra.Command {
	o := &operation{printer: p}
	o.register(cmd)
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.DisableFlagsInUseLine = true
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.out = cmd.OutOrStdout()
		a, err := o.resolve(p)
		if err != nil {
			return err
		}
		o.address = a
		ctx, stop := untilSignal()
		defer stop()
		b, err := openShared(ctx, p, a)
		if err != nil {
			return unlessSignalled(ctx, err)
		}
		defer b.Close()
		return unlessSignalled(ctx, do(ctx, o, b, args))
	}
	return cmd
}

// print prints JSON.
func (o *operation) print(v any) error {
	if err := printJSON(o.out, v); err != nil {
		return outputError(err)
	}
	return nil
}

// hint warns that nothing was found where nobody said that one should look.
func (o *operation) hint() {
	if here := o.address.here(); here != "" {
		o.printer.warn("nothing was found" + here)
	}
}

// oneKey checks that there is one argument and that it is a key.
func oneKey(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return usageError("the key is missing")
	case 1:
		if err := lock.ValidateKey(args[0]); err != nil {
			return usageError("%s", plain(err))
		}
		return nil
	}
	return usageError("there are %d arguments, and one key is expected", len(args))
}

// ability is what the backend can do besides, or a usage error that names
// what it cannot do.
func ability[T any](b backend.Backend, what string) (T, error) {
	t, ok := backend.As[T](b)
	if !ok {
		return t, usageError("%s cannot %s; look at its server with the tools for that", b.Guarantees().Name, what)
	}
	return t, nil
}

func newInspectCommand(p *printer) *cobra.Command {
	return operate(p, &cobra.Command{
		Use:   "inspect [flags] KEY",
		Short: "Show who holds a key, since when and until when",
		Long: `Show who holds KEY: the token and label, the host and process, since when, until
when unless it is renewed, how many holds its owner has and how many wait for it.
A - stands for what the server cannot know.

The exit status is 0 when the key is held and 1 when nobody holds it.`,
		Example: `  lockctl inspect nightly
  lockctl inspect --json --url redis://cache:6379 nightly | jq .host`,
		Args: oneKey,
	}, func(ctx context.Context, o *operation, b backend.Backend, args []string) error {
		in, err := ability[backend.Inspector](b, "show who holds a key")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, operateLimit)
		defer cancel()
		rec, err := in.Inspect(ctx, args[0])
		switch {
		case errors.Is(err, lock.ErrNotHeld) && o.json:
			if err := o.print(shown{Key: args[0]}); err != nil {
				return err
			}
			o.hint()
			return &exitError{code: exitFree}
		case errors.Is(err, lock.ErrNotHeld):
			return exitWith(exitFree, "nobody holds %q%s%s", args[0], o.address.at(), o.address.here())
		case err != nil:
			return operateError(err, args[0])
		case o.json:
			err = printJSON(o.out, show(rec, time.Now()))
		default:
			err = printRecord(o.out, rec, time.Now())
		}
		if err != nil {
			return outputError(err)
		}
		return nil
	})
}

func newListCommand(p *printer) *cobra.Command {
	return operate(p, &cobra.Command{
		Use:   "ls [flags] [PREFIX]",
		Short: "List the keys that are held",
		Long: `List the keys that are held and begin with PREFIX, in alphabetical order, with
what inspect shows of each. With --json there is one object per line.`,
		Example: `  lockctl ls
  lockctl ls --url redis://cache:6379 billing/`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError("there are %d arguments, and at most one prefix is expected", len(args))
			}
			return nil
		},
	}, func(ctx context.Context, o *operation, b backend.Backend, args []string) error {
		l, err := ability[backend.Lister](b, "list keys (inspect shows a single one)")
		if err != nil {
			return err
		}
		var records []backend.Record
		err = l.List(ctx, strings.Join(args, ""), func(r backend.Record) bool {
			records = append(records, r)
			return true
		})
		if err != nil {
			return operateError(err, "")
		}
		slices.SortFunc(records, func(a, b backend.Record) int { return strings.Compare(a.Key, b.Key) })
		if len(records) == 0 {
			o.hint()
		}
		now := time.Now()
		if !o.json {
			err = printTable(o.out, records, now)
		}
		for _, r := range records {
			if o.json && err == nil {
				err = printJSON(o.out, show(r, now))
			}
		}
		if err != nil {
			return outputError(err)
		}
		return nil
	})
}

func newUnlockCommand(p *printer) *cobra.Command {
	var (
		written string
		now     bool
	)
	cmd := operate(p, &cobra.Command{
		Use:   "unlock [flags] KEY --token N [--now]",
		Short: "End somebody else's hold by force",
		Long: `End the hold of KEY that has the token N, which lockctl inspect shows. A newer
hold has a larger token and is never hit.

The holder's next renewal is refused, and tells it that it was taken over. Others
get the key when the hold would have expired, which is when the holder has
certainly noticed. With --now they get it at once: the old holder may still be at
work then, for up to a third of its TTL, so make sure first that it is dead.`,
		Example: `  lockctl inspect nightly
  lockctl unlock nightly --token 1795197764754627
  lockctl unlock nightly --token 1795197764754627 --now`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := oneKey(cmd, args); err != nil {
				return err
			}
			if !cmd.Flags().Changed("token") {
				return usageError("which hold of %q is to be ended? Name it with --token N, which lockctl inspect shows", args[0])
			}
			return nil
		},
	}, func(ctx context.Context, o *operation, b backend.Backend, args []string) error {
		token, err := strconv.ParseUint(written, 10, 64)
		if err != nil {
			return noToken(written)
		}
		return o.unlock(ctx, b, args[0], token, now)
	})
	cmd.Flags().StringVar(&written, "token", "", "`token` of the hold to end, as inspect shows it")
	cmd.Flags().BoolVar(&now, "now", false, "let others in at once, not when the hold would have expired")
	return cmd
}

// unlocked is what unlock prints with --json.
type unlocked struct {
	Key   string `json:"key"`
	Token uint64 `json:"token"`
	// Ended: others can have the key now. It is false too when nothing was changed.
	Ended bool `json:"ended"`
	// Refused: the token does not hold the key, and nothing was changed.
	Refused bool `json:"refused,omitempty"`
	// Until is when others get the key at the latest.
	Until *time.Time `json:"until,omitempty"`
}

func noToken(written string) error {
	return usageError("--token %q is not the token of a hold, which is a positive number; lockctl inspect shows it", written)
}

func (o *operation) unlock(ctx context.Context, b backend.Backend, key string, token uint64, now bool) error {
	var end func(ctx context.Context, key string, token uint64) error
	if r, ok := backend.As[backend.Revoker](b); ok && !now {
		end = r.Revoke
	} else {
		what := "end the hold of somebody else"
		if b.Guarantees().Token == backend.TokenNone {
			what += " without fencing tokens"
		}
		f, err := ability[backend.ForceReleaser](b, what)
		if err != nil {
			return err
		}
		if !now {
			return usageError("%s can end the hold of somebody else at once only; make sure that the holder is dead, and add --now", b.Guarantees().Name)
		}
		end = f.ForceRelease
	}
	if token == 0 { // which a store without tokens shows, and was told of above
		return noToken("0")
	}
	ctx, cancel := context.WithTimeout(ctx, operateLimit)
	defer cancel()
	in, inspects := backend.As[backend.Inspector](b)
	err := end(ctx, key, token)
	if err != nil && !errors.Is(err, lock.ErrNotHeld) {
		return operateError(err, key)
	}
	var (
		rec     backend.Record
		looking error = lock.ErrUnsupported
	)
	if inspects {
		rec, looking = in.Inspect(ctx, key)
	}
	if err != nil && o.json {
		if err := o.print(unlocked{Key: key, Token: token, Refused: true}); err != nil {
			return err
		}
	}
	switch {
	case err != nil && looking == nil:
		return exitWith(exitHeld, "token %d does not hold %q; now it is held by %s with the token %d; nothing was changed", token, key, rec.Holder, rec.Token)
	case err != nil && errors.Is(looking, lock.ErrNotHeld):
		return exitWith(exitFree, "nobody holds %q%s; nothing was changed%s", key, o.address.at(), o.address.here())
	case err != nil:
		return exitWith(exitHeld, "token %d does not hold %q; nothing was changed", token, key)
	}
	result := unlocked{Key: key, Token: token, Ended: true}
	message := "the hold was ended; others can have the key now"
	if !now && looking == nil && rec.Token == token {
		until := time.Now().Add(rec.Remaining).UTC().Truncate(time.Millisecond)
		result.Ended, result.Until = false, &until
		message = "the hold is not renewed any more; others can have the key in " + round(rec.Remaining).String()
	}
	if o.json {
		err = printJSON(o.out, result)
	} else {
		_, err = io.WriteString(o.out, message+"\n")
	}
	if err != nil {
		return outputError(err)
	}
	return nil
}
