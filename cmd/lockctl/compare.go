package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance"
)

func newCompareCommand(p *printer) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "compare [flags] [URL...]",
		Short: "Show what backends promise, side by side",
		Long: `Show what the backends of the URLs promise, side by side. The backends are opened,
since what they promise can depend on the settings of their servers. Without a URL
it is what each backend promises when its server is set up as its page says.

Behind each promise stand the rules of the conformance suite that prove it, and
tests of the backend, as package.TestName. lockctl check runs the rules; the verdict of
its report names those that it cannot try.`,
		Example: `  lockctl compare
  lockctl compare file: redis://cache:6379
  lockctl compare --format markdown > guarantees.md`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := compareFormats[format]
			if !ok {
				return usageError("--format %q; it is text, markdown or json", format)
			}
			found := backend.DefaultMux.Declared()
			if len(args) > 0 {
				ctx, stop := untilSignal()
				defer stop()
				var err error
				if found, err = openAll(ctx, p, args); err != nil {
					return unlessSignalled(ctx, err)
				}
			}
			if err := write(cmd.OutOrStdout(), found); err != nil {
				return outputError(err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", "text", "text, markdown or json")
	return cmd
}

var compareFormats = map[string]func(io.Writer, []backend.Declaration) error{
	"text":     compareText,
	"markdown": compareMarkdown,
	"json":     compareJSON,
}

// compared is what compare prints of a backend as JSON.
type compared struct {
	backend.Declaration
	Promises []comparedPromise `json:"promises"`
}

type comparedPromise struct {
	Promise string `json:"promise"`
	Cell    string `json:"cell"`
	// ProvenBy are rules of the suite, and tests as package.TestName.
	ProvenBy []string `json:"proven_by"`
}

func compareJSON(w io.Writer, found []backend.Declaration) error {
	out := make([]compared, len(found))
	for i, d := range found {
		out[i].Declaration = d
		for _, p := range promises {
			out[i].Promises = append(out[i].Promises, comparedPromise{p.title, p.cell(d.Guarantees), append([]string{}, p.provenBy(d.Guarantees)...)})
		}
	}
	return printJSON(w, out)
}

// openAll asks each backend what it promises.
func openAll(ctx context.Context, p *printer, urls []string) ([]backend.Declaration, error) {
	var found []backend.Declaration
	for i, raw := range urls {
		raw, ttl, err := backend.CutTTL(raw)
		var u *backend.URL
		if err == nil {
			u, err = backend.ParseURL(raw)
		}
		if err != nil {
			return nil, usageError("URL %d of %d: %s", i+1, len(urls), plain(err))
		}
		if err := checkURL(p, raw); err != nil {
			return nil, err
		}
		opening, cancel := context.WithTimeout(ctx, openLimit)
		opened := p.opens(raw)
		b, err := backend.DefaultMux.Open(opening, raw, backend.OpenConfig{TTL: cmp.Or(ttl, lock.DefaultTTL), Logger: p.logger(), LookOnly: true})
		opened()
		cancel()
		if err == nil && ttl != 0 {
			if err = b.Guarantees().CheckTTL(ttl); err != nil {
				_ = b.Close()
			}
		}
		if err != nil {
			e := operateError(err, "")
			return nil, exitWith(e.code, "%s: %s", u, e.message)
		}
		found = append(found, backend.Declaration{URL: u.String(), Guarantees: b.Guarantees()})
		if err := b.Close(); err != nil {
			p.warn(fmt.Sprintf("closing %s: %v", u, err))
		}
	}
	return found, nil
}

// compareText prints a block for each promise, with a line for each backend. Where the
// cells are not all proved by the same rules, they are marked with those that do.
func compareText(w io.Writer, found []backend.Declaration) error {
	for _, p := range promises {
		marks, proofs := proofsOf([]promise{p}, found)
		alike := len(slices.Compact(slices.Sorted(slices.Values(marks[0])))) == 1
		fmt.Fprintf(w, "%s\n", p.title)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for i, d := range found {
			mark := ""
			if n := marks[0][i]; n > 0 && !alike {
				mark = fmt.Sprintf("\t[%d]", n)
			}
			fmt.Fprintf(t, "  %s\t%s%s\n", d.URL, p.cell(d.Guarantees), mark)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for i, proof := range proofs {
			begin := "  proved by "
			if !alike {
				begin = fmt.Sprintf("  [%d] proved by ", i+1)
			}
			fmt.Fprintln(w, indented(begin, proof.rules))
		}
		fmt.Fprintln(w)
	}
	for _, d := range found {
		fmt.Fprintf(w, "%s assumes\n", d.URL)
		for _, a := range d.Guarantees.Assumptions {
			fmt.Fprintln(w, indented("  - ", a))
		}
		fmt.Fprintln(w)
	}
	_, err := fmt.Fprintln(w, indented("", paused))
	return err
}

// paused is what no lock can promise.
const paused = "A process that stops between checking its lease and acting can still act late, on every backend. Use the token, or a guarded write, where that matters."

// indented breaks a text into lines of about 100 characters that begin below each
// other.
func indented(first, text string) string {
	const width = 100
	var b strings.Builder
	b.WriteString(first)
	margin := strings.Repeat(" ", len(first))
	used := len(first)
	for i, word := range strings.Fields(text) {
		if i > 0 && used+1+len(word) > width {
			b.WriteString("\n" + margin)
			used = len(margin)
		} else if i > 0 {
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += len(word)
	}
	return b.String()
}

// compareMarkdown prints a table with a column for each backend, and what all have in
// common below it.
func compareMarkdown(w io.Writer, found []backend.Declaration) error {
	var b strings.Builder
	b.WriteString("| |")
	for _, d := range found {
		fmt.Fprintf(&b, " `%s` |", d.URL)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(found)) + "\n")
	var common []string
	for _, p := range promises {
		var cells []string
		for _, d := range found {
			cells = append(cells, p.cell(d.Guarantees))
		}
		if len(cells) > 1 && len(slices.Compact(slices.Clone(cells))) == 1 {
			common = append(common, fmt.Sprintf("- **%s**: %s\n", p.title, cells[0]))
			continue
		}
		fmt.Fprintf(&b, "| **%s** | %s |\n", p.title, strings.Join(cells, " | "))
	}
	if len(common) > 0 {
		b.WriteString("\nOn all of them:\n\n" + strings.Join(common, ""))
	}
	b.WriteString("\n## What has to be true\n\nThe promises are kept as long as this is so:\n")
	for _, shared := range sharedBy(found, func(d backend.Declaration) []string { return d.Guarantees.Assumptions }) {
		fmt.Fprintf(&b, "\n%s\n\n- %s\n", shared.names(found), strings.Join(shared.items, "\n- "))
	}
	b.WriteString("\n" + paused + "\n\n## What proves it\n\n| Promise | Rules of the suite (in italics: all of a subject), and tests of the backend |\n|---|---|\n")
	for _, p := range promises {
		provenBy := func(d backend.Declaration) []string { return p.provenBy(d.Guarantees) }
		promising := 0
		for _, d := range found {
			if len(provenBy(d)) > 0 {
				promising++
			}
		}
		var parts []string
		for _, shared := range sharedBy(found, provenBy) {
			part := strings.Join(bySubject(shared.items), ", ")
			if shared.count() < promising {
				part = shared.names(found) + ": " + part
			}
			parts = append(parts, part)
		}
		if len(parts) > 0 {
			fmt.Fprintf(&b, "| %s | %s |\n", p.title, strings.Join(parts, "; "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// bySubject puts the name of a subject of the suite in place of its rules, where all or
// nearly all of them are there.
func bySubject(items []string) []string {
	var subjects []string
	of := map[string][]string{}
	for _, r := range conformance.Rules() {
		if of[r.Subject] == nil {
			subjects = append(subjects, r.Subject)
		}
		of[r.Subject] = append(of[r.Subject], r.Name)
	}
	for _, subject := range subjects {
		var with, without []string
		for _, rule := range of[subject] {
			if slices.Contains(items, rule) {
				with = append(with, rule)
			} else {
				without = append(without, rule)
			}
		}
		if len(with) < 3 || len(without) > len(with)/4 {
			continue
		}
		text := "*" + subject + "*"
		if len(without) > 0 {
			text += " but " + strings.Join(without, " and ")
		}
		at := slices.Index(items, with[0])
		items = slices.Insert(slices.Clone(items), at, text)
		items = slices.DeleteFunc(items, func(item string) bool { return slices.Contains(with, item) })
	}
	return items
}

// shared are items that the same backends have.
type shared struct {
	has   []bool // by the backend
	items []string
}

// sharedBy puts together the items that the same backends have, those of the most
// backends first.
func sharedBy(found []backend.Declaration, itemsOf func(backend.Declaration) []string) []shared {
	var order []string
	having := map[string][]bool{}
	for i, d := range found {
		for _, item := range itemsOf(d) {
			if having[item] == nil {
				order = append(order, item)
				having[item] = make([]bool, len(found))
			}
			having[item][i] = true
		}
	}
	var out []shared
	for _, item := range order {
		at := slices.IndexFunc(out, func(s shared) bool { return slices.Equal(s.has, having[item]) })
		if at < 0 {
			at = len(out)
			out = append(out, shared{has: having[item]})
		}
		out[at].items = append(out[at].items, item)
	}
	slices.SortStableFunc(out, func(a, b shared) int { return b.count() - a.count() })
	return out
}

func (s shared) count() (n int) {
	for _, has := range s.has {
		if has {
			n++
		}
	}
	return n
}

// names are the URLs of the backends that have the items, or of those that don't where
// these are few.
func (s shared) names(found []backend.Declaration) string {
	var with, without []string
	for i, d := range found {
		if url := "`" + d.URL + "`"; s.has[i] {
			with = append(with, url)
		} else {
			without = append(without, url)
		}
	}
	switch {
	case len(without) == 0 && len(with) > 1:
		return "all of them"
	case len(without) > 0 && len(without) < len(with):
		return "all but " + strings.Join(without, ", ")
	}
	return strings.Join(with, ", ")
}
