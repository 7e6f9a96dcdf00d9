package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// progressed is what migrate status prints with --json: the keys that are held, by where.
type progressed struct {
	// Step is what the holders use: "nobody", "old", "old and both", "both", "both and
	// new", "new", "unclear", or "old and new", of which there must be none.
	Step string `json:"step"`
	// Old are held in the old backend alone, Both in both, New in the new one alone.
	Old  []shown `json:"old"`
	Both []pair  `json:"both"`
	New  []shown `json:"new"`
	// Moving are keys that were taken or let go during the look.
	Moving []string `json:"moving"`
	// Unseen says what could not be seen.
	Unseen []string `json:"unseen"`
}

// pair is a key that is held in both backends.
type pair struct {
	Old shown `json:"old"`
	New shown `json:"new"`
	// OneHolder: one lease holds both.
	OneHolder bool `json:"one_holder"`
	// Waits: the holder in the old backend is of the second step, and waits for the new one.
	// With neither, the one does not know of the other.
	Waits bool `json:"waits"`
}

// pairOf tells from what the two records say whether they are of one lease: lock.Both leaves
// a text in both which no other lease has. Host, process and label may be those of two copies
// in containers.
func pairOf(old, next backend.Record, now time.Time) pair {
	p := pair{Old: show(old, now), New: show(next, now)}
	p.OneHolder = old.Holder.PairID != "" && old.Holder.PairID == next.Holder.PairID
	p.Waits = old.Holder.PairID != "" && !p.OneHolder
	return p
}

// apart are two holders that do not exclude each other.
func (p pair) apart() bool { return !p.OneHolder && !p.Waits }

func newStatusCommand(p *printer) *cobra.Command {
	var (
		m    move
		json bool
		keys []string
	)
	cmd := &cobra.Command{
		Use:   "status [flags] --from OLD --to NEW [--key KEY]...",
		Short: "Show which keys are held in the old backend, in both, in the new one",
		Long: `Show, while copies of a program move from OLD to NEW in steps, which keys are held in
OLD alone (by copies that have yet to learn of NEW), in both, and in NEW alone.

Without --key all keys are listed, where the backends can; with it those keys are
looked at. It changes nothing. Who holds nothing at the moment of the look is not
seen: a status of 0 means that nobody was seen, not that nobody is there.`,
		Example: `  lockctl migrate status --from redis://cache:6379 --to etcd://etcd1:2379,etcd2:2379
  lockctl migrate status --config locks.yaml --locker jobs   # which has also
  lockctl migrate status --json --from file: --to redis://cache:6379 | jq -r '.old[].host'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, key := range keys {
				if err := lock.ValidateKey(key); err != nil {
					return usageError("%s", plain(err))
				}
			}
			ctx, stop := untilSignal()
			defer stop()
			return unlessSignalled(ctx, m.status(ctx, p, cmd.OutOrStdout(), keys, json))
		},
	}
	m.register(cmd)
	cmd.Flags().StringArrayVar(&keys, "key", nil, "look at this `key`, instead of all that are listed; may be repeated")
	cmd.Flags().BoolVar(&json, "json", false, "print JSON")
	return cmd
}

// exitTwo is the status of migrate status when copies of the first and the last step hold
// keys, which do not exclude each other.
const exitTwo = exitLost

func (m *move) status(ctx context.Context, p *printer, out io.Writer, keys []string, json bool) error {
	var sides [2]looker
	for i, flag := range []string{"--from", "--to"} {
		at := address{url: [2]string{m.from, m.to}[i]}
		if err := at.check(p, flag); err != nil {
			return err
		}
		b, err := openShared(ctx, p, at)
		if err != nil {
			return err
		}
		defer b.Close()
		inspector, err := ability[backend.Inspector](b, "show who holds a key")
		if err != nil {
			return err
		}
		lister, _ := backend.As[backend.Lister](b)
		sides[i] = looker{inspector, lister, b.Guarantees().Name}
	}
	ctx, cancel := context.WithTimeout(ctx, operateLimit)
	defer cancel()
	found, err := holdersOf(ctx, sides, keys)
	if err != nil {
		return err
	}
	if json {
		err = printJSON(out, found)
	} else {
		err = found.print(out)
	}
	switch {
	case err != nil:
		return outputError(err)
	case found.inTwo():
		return exitWith(exitTwo, "some use the old backend alone and some the new one alone, which do not exclude each other; take the last step back")
	case len(found.Old) > 0:
		return &exitError{code: exitFree}
	case found.inDoubt():
		return &exitError{code: exitHeld}
	}
	return nil
}

// looker is one of the two backends.
type looker struct {
	backend.Inspector
	lister backend.Lister // or nil
	name   string
}

// find returns the record of the key, or nil when nobody holds it.
func (l looker) find(ctx context.Context, key string) (*backend.Record, error) {
	r, err := l.Inspect(ctx, key)
	switch {
	case errors.Is(err, lock.ErrNotHeld):
		return nil, nil //nolint:nilnil // no record is no error
	case err != nil:
		return nil, operateError(err, key)
	}
	return &r, nil
}

// holdersOf finds who holds what. What is listed may have gone a moment later, so each key is
// looked at until two looks agree.
func holdersOf(ctx context.Context, sides [2]looker, keys []string) (*progressed, error) {
	found := &progressed{Old: []shown{}, Both: []pair{}, New: []shown{}, Moving: []string{}, Unseen: []string{
		"who holds no key at this moment",
	}}
	if len(keys) == 0 {
		listed := false
		for _, l := range sides {
			if l.lister == nil {
				found.Unseen = append(found.Unseen, fmt.Sprintf("keys that are held in %s alone, which cannot list its keys: name them with --key", l.name))
				continue
			}
			listed = true
			err := l.lister.List(ctx, "", func(r backend.Record) bool {
				keys = append(keys, r.Key)
				return true
			})
			if err != nil {
				return nil, operateError(err, "")
			}
		}
		if !listed {
			return nil, usageError("neither backend can list its keys; name those to look at with --key")
		}
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if err := found.add(ctx, sides, key); err != nil {
			return nil, err
		}
	}
	found.Step = found.step()
	return found, nil
}

const (
	looks     = 5
	lookPause = 30 * time.Millisecond // longer than the two grants, or releases, of one holder are apart
)

func (f *progressed) add(ctx context.Context, sides [2]looker, key string) error {
	var last [2]*backend.Record
	for n := range looks {
		if n > 0 {
			select {
			case <-time.After(lookPause):
			case <-ctx.Done():
				return operateError(ctx.Err(), key)
			}
		}
		var now [2]*backend.Record
		for i, l := range sides {
			var err error
			if now[i], err = l.find(ctx, key); err != nil {
				return err
			}
		}
		if n > 0 && same(now[0], last[0]) && same(now[1], last[1]) {
			f.put(now)
			return nil
		}
		last = now
	}
	f.Moving = append(f.Moving, key)
	return nil
}

// same reports whether both show one hold, or none.
func same(a, b *backend.Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Token == b.Token
}

func (f *progressed) put(r [2]*backend.Record) {
	now := time.Now()
	switch {
	case r[0] == nil && r[1] == nil:
	case r[1] == nil:
		f.Old = append(f.Old, show(*r[0], now))
	case r[0] == nil:
		f.New = append(f.New, show(*r[1], now))
	default:
		f.Both = append(f.Both, pairOf(*r[0], *r[1], now))
	}
}

// inDoubt reports whether a holder was seen that may be of any step.
func (f *progressed) inDoubt() bool {
	return len(f.Moving) > 0 || slices.ContainsFunc(f.Both, func(p pair) bool { return p.Waits })
}

// inTwo reports whether copies of the first and of the last step were seen.
func (f *progressed) inTwo() bool {
	return len(f.Old) > 0 && len(f.New) > 0 || slices.ContainsFunc(f.Both, pair.apart)
}

func (f *progressed) step() string {
	var parts []string
	for _, part := range []struct {
		name string
		n    int
	}{{"old", len(f.Old)}, {"both", len(f.Both)}, {"new", len(f.New)}} {
		if part.n > 0 {
			parts = append(parts, part.name)
		}
	}
	if f.inTwo() {
		parts = []string{"old", "new"}
	}
	switch {
	case !f.inTwo() && len(f.Old) == 0 && f.inDoubt():
		return "unclear"
	case len(parts) == 0:
		return "nobody"
	}
	return strings.Join(parts, " and ")
}

// print prints a table and what was not seen.
func (f *progressed) print(w io.Writer) error {
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "HELD IN\tKEY\tHELD FOR\tLABEL\tHOST\tPID")
	row := func(where string, s shown) {
		since := unknown
		if s.Since != nil {
			since = round(max(time.Since(*s.Since), 0)).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", where, printable(s.Key), since, orUnknown(s.Label), orUnknown(s.Host), count(s.PID))
	}
	for _, s := range f.Old {
		row("old", s)
	}
	for _, p := range f.Both {
		if p.OneHolder {
			row("both", p.Old)
			continue
		}
		row("old, of two", p.Old)
		row("new, of two", p.New)
	}
	for _, s := range f.New {
		row("new", s)
	}
	for _, key := range f.Moving {
		fmt.Fprintf(t, "moving\t%s\t%s\t%s\t%s\t%s\n", printable(key), unknown, unknown, unknown, unknown)
	}
	_ = t.Flush()
	fmt.Fprintf(&text, "seen: %s; not seen: %s\n", f.Step, strings.Join(f.Unseen, "; "))
	_, err := w.Write(text.Bytes())
	return err
}
