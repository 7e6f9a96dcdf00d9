package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock/backend"
)

// cleaned is what cleanup prints with --json.
type cleaned struct {
	// Removed is of how many keys something was removed, or would have been (DryRun).
	Removed int  `json:"removed"`
	DryRun  bool `json:"dry_run"`
	// KeepsNothing: the backend keeps nothing of a key that nobody holds.
	KeepsNothing bool `json:"keeps_nothing"`
	// OlderThan is for how long the keys were not used.
	OlderThan float64 `json:"older_than_seconds"`
}

// forgotten is what cleanup --forget prints with --json.
type forgotten struct {
	Forgotten string `json:"forgotten"` // the prefix
}

// cleanup is what lockctl cleanup was asked to do.
type cleanup struct {
	olderThan time.Duration
	dryRun    bool
	prefix    string
	forgets   bool
}

func newCleanupCommand(p *printer) *cobra.Command {
	var c cleanup
	cmd := operate(p, &cobra.Command{
		Use:   "cleanup [flags] --older-than DURATION [--dry-run] | --forget PREFIX",
		Short: "Remove what is kept of keys that are not used any more",
		Long: `Remove what the backend keeps of keys that nobody holds, and that nobody has used for
longer than --older-than: rows of MySQL, and the files of holders that died. The
others keep nothing of such keys, or for a time only (redlock://). A key that is held
is never touched. It can run at any time, and twice at once.

Tokens go on to rise for keys that come back. With mysql://...?mode=row they count
from the server's clock, which must not be set back by more than --older-than.

With --forget everything goes that is kept of the keys that begin with PREFIX and
that nobody holds, however young it is. Then a token of such a key may be repeated:
use it for keys that are not used any more.`,
		Example: `  lockctl cleanup --url mysql://app@db/app --older-than 24h --dry-run
  lockctl cleanup --url mysql://app@db/app --older-than 24h
  lockctl cleanup --url redlock://a,b,c --forget import/2026-10/`,
		Args: func(cmd *cobra.Command, args []string) error {
			c.forgets = cmd.Flags().Changed("forget")
			return c.check(args, cmd.Flags().Changed("older-than"))
		},
	}, func(ctx context.Context, o *operation, b backend.Backend, _ []string) error {
		if c.forgets {
			return o.forget(ctx, b, c.prefix)
		}
		return o.cleanup(ctx, b, c)
	})
	cmd.Flags().DurationVar(&c.olderThan, "older-than", 0, "for how long nobody has used the keys, for example 24h")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "change nothing, and say how many keys it would be")
	cmd.Flags().StringVar(&c.prefix, "forget", "", "`prefix` of keys that are not used any more, whose tokens may be repeated")
	return cmd
}

func (c *cleanup) check(args []string, aged bool) error {
	switch {
	case len(args) > 0:
		return usageError("%q is one argument too many; --forget takes the prefix of keys", args[0])
	case aged && c.forgets:
		return usageError("--older-than and --forget exclude each other: to forget, a backend does not look at the age")
	case c.forgets && c.dryRun:
		return usageError("--dry-run counts by --older-than only; lockctl ls PREFIX shows what --forget would leave")
	case c.forgets && c.prefix == "":
		return usageError("--forget is empty, which would be every key; give a prefix, or --older-than 24h")
	case c.forgets:
		return nil
	case !aged:
		return usageError("which keys? Those that nobody has used for a day: --older-than 24h")
	case c.olderThan <= 0:
		return usageError("--older-than %s; it must be positive, for example 24h", c.olderThan)
	}
	return nil
}

func (o *operation) cleanup(ctx context.Context, b backend.Backend, c cleanup) error {
	result := cleaned{DryRun: c.dryRun, OlderThan: c.olderThan.Seconds()}
	able, cleans := backend.As[backend.Cleaner](b)
	if !cleans {
		if _, forgets := backend.As[backend.Forgetter](b); forgets {
			return usageError("%s does not look at the age of what it keeps, and removes it by itself in time (token_memory in the URL); to remove it sooner, name the prefix of keys that are not used any more: --forget PREFIX", b.Guarantees().Name)
		}
		result.KeepsNothing = true
		return o.tell(result, "nothing to clean up: %s keeps nothing of a key that nobody holds", b.Guarantees().Name)
	}
	done := "removed what was kept of"
	if c.dryRun {
		done = "would remove what is kept of"
	}
	var err error
	if result.Removed, err = able.Cleanup(ctx, c.olderThan, c.dryRun); err != nil {
		e := operateError(err, "")
		if result.Removed > 0 && !c.dryRun {
			e.message += fmt.Sprintf("; before that, what was kept of %s was removed", keys(result.Removed))
		}
		return e
	}
	if result.Removed == 0 {
		o.hint()
		return o.tell(result, "nothing to clean up: no key was unused for %s", brief(c.olderThan))
	}
	return o.tell(result, "%s %s that nobody had used for %s", done, keys(result.Removed), brief(c.olderThan))
}

// forget removes what is kept of the keys that begin with the prefix, and says what that
// means for tokens.
func (o *operation) forget(ctx context.Context, b backend.Backend, prefix string) error {
	f, forgets := backend.As[backend.Forgetter](b)
	if !forgets {
		if _, cleans := backend.As[backend.Cleaner](b); !cleans {
			return usageError("%s keeps nothing of a key that nobody holds, so there is nothing to forget", b.Guarantees().Name)
		}
		return usageError("%s keeps no tokens of single keys, so there is nothing to forget; use --older-than, for example 24h", b.Guarantees().Name)
	}
	if err := f.Forget(ctx, prefix); err != nil {
		return operateError(err, "")
	}
	o.printer.warn("tokens of the forgotten keys may be repeated: what has seen larger ones would refuse those who use such a key again")
	return o.tell(forgotten{prefix}, "removed what was kept of the keys that begin with %q and that nobody holds", prefix)
}

// tell prints the result, as JSON or in words.
func (o *operation) tell(result any, format string, args ...any) error {
	if o.json {
		return o.print(result)
	}
	if _, err := io.WriteString(o.out, fmt.Sprintf(format, args...)+"\n"); err != nil {
		return outputError(err)
	}
	return nil
}

func keys(n int) string {
	if n == 1 {
		return "1 key"
	}
	return fmt.Sprintf("%d keys", n)
}

// brief is the duration without the zeros at its end, as in 24h.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
