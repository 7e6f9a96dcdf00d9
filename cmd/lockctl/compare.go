package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
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
	for _, raw := range urls {
		if err := checkURL(p, raw); err != nil {
			return nil, err
		}
		u, err := backend.ParseURL(raw)
		if err != nil {
			return nil, usageError("%s", plain(err))
		}
		opening, cancel := context.WithTimeout(ctx, openLimit)
		opened := p.slowly(raw)
		b, err := backend.DefaultMux.Open(opening, raw, backend.OpenConfig{TTL: lock.DefaultTTL, Logger: p.logger(), LookOnly: true})
		opened()
		cancel()
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

// compareMarkdown prints a table with a column for each backend.
func compareMarkdown(w io.Writer, found []backend.Declaration) error {
	var b strings.Builder
	b.WriteString("| |")
	for _, d := range found {
		fmt.Fprintf(&b, " `%s` |", d.URL)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(found)) + "\n")
	marks, proofs := proofsOf(promises, found)
	for row, promise := range promises {
		fmt.Fprintf(&b, "| **%s** |", promise.title)
		for i, d := range found {
			fmt.Fprintf(&b, " %s", promise.cell(d.Guarantees))
			if n := marks[row][i]; n > 0 {
				fmt.Fprintf(&b, " <sup>%d</sup>", n)
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\nThe numbers stand for the rules that [prove](#what-proves-it) a cell. A cell without one promises nothing.\n")
	b.WriteString("\n## What has to be true\n\nEach backend keeps its promises as long as this is so:\n")
	for _, d := range found {
		fmt.Fprintf(&b, "\n`%s` (%s)\n\n", d.URL, d.Guarantees.Name)
		for _, a := range d.Guarantees.Assumptions {
			fmt.Fprintf(&b, "- %s\n", a)
		}
	}
	b.WriteString("\n" + paused + "\n\n## What proves it\n\n| | Promise | Rules of the suite, and tests of the backend |\n|---|---|---|\n")
	for i, proof := range proofs {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", i+1, proof.promise, proof.rules)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
