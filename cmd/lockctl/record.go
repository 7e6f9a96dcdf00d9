package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/mortiselock/lock/backend"
)

// shown is a record as inspect and ls print it with --json. What the server
// cannot know is null or missing.
type shown struct {
	Key     string     `json:"key"`
	Held    bool       `json:"held"`
	Token   uint64     `json:"token,omitempty"`
	Holds   int        `json:"holds,omitempty"`
	Waiters *int       `json:"waiters"`
	Label   string     `json:"label,omitempty"`
	Host    string     `json:"host,omitempty"`
	PID     int        `json:"pid,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	// Until is when the hold ends unless it is renewed, by the clock of this machine.
	Until *time.Time `json:"until,omitempty"`
	// Remaining is until then, in seconds.
	Remaining float64 `json:"remaining_seconds,omitempty"`
	// Revoked: lockctl unlock has ended the hold, so that it is not renewed.
	Revoked bool `json:"revoked,omitempty"`
}

func show(r backend.Record, now time.Time) shown {
	s := shown{
		Key: r.Key, Held: true, Token: r.Token, Holds: r.Holds,
		Label: r.Holder.Label, Host: r.Holder.Host, PID: r.Holder.PID, Revoked: r.Revoked,
	}
	if r.Waiters >= 0 {
		s.Waiters = &r.Waiters
	}
	if since := r.Holder.Since.UTC(); !r.Holder.Since.IsZero() {
		s.Since = &since
	}
	if r.Remaining > 0 {
		until := now.Add(r.Remaining).UTC().Truncate(time.Millisecond)
		s.Until, s.Remaining = &until, float64(r.Remaining.Milliseconds())/1000
	}
	return s
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// unknown stands for what a server cannot know.
const unknown = "-"

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return printable(s)
}

// printable keeps what would disturb a terminal, such as control characters, out of what
// other processes have written.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}

// printableLines is printable for a text of several lines.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = printable(strings.ReplaceAll(line, "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

func count(n int) string {
	if n <= 0 {
		return unknown
	}
	return strconv.Itoa(n)
}

// printRecord prints one record as lines of name and value.
func printRecord(w io.Writer, r backend.Record, now time.Time) error {
	s := show(r, now)
	waiters := unknown
	if s.Waiters != nil {
		waiters = strconv.Itoa(*s.Waiters)
	}
	since, until := unknown, unknown
	if s.Since != nil {
		since = fmt.Sprintf("%s (%s ago)", s.Since.Format(time.RFC3339), round(max(now.Sub(*s.Since), 0)))
	}
	if s.Until != nil {
		condition := ", unless renewed"
		if s.Revoked {
			condition = " at the latest: it was revoked"
		}
		until = fmt.Sprintf("%s (in %s%s)", s.Until.Format(time.RFC3339), round(r.Remaining), condition)
	}
	token := unknown
	if s.Token != 0 {
		token = strconv.FormatUint(s.Token, 10)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"key", printable(s.Key)}, {"token", token}, {"holds", count(s.Holds)}, {"waiters", waiters},
		{"label", orUnknown(s.Label)}, {"host", orUnknown(s.Host)}, {"pid", count(s.PID)},
		{"since", since}, {"until", until},
	} {
		fmt.Fprintf(t, "%s\t%s\n", line[0], line[1])
	}
	return t.Flush()
}

// printTable prints records as a table, at once, so that no message comes in between.
func printTable(w io.Writer, records []backend.Record, now time.Time) error {
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tTOKEN\tHOLDS\tWAITERS\tHELD FOR\tENDS IN\tLABEL\tHOST\tPID")
	for _, r := range records {
		s := show(r, now)
		waiters, since, until, token := unknown, unknown, unknown, unknown
		if s.Waiters != nil {
			waiters = strconv.Itoa(*s.Waiters)
		}
		if s.Since != nil {
			since = round(max(now.Sub(*s.Since), 0)).String()
		}
		if s.Until != nil {
			until = round(r.Remaining).String()
			if s.Revoked {
				until += ", revoked"
			}
		}
		if s.Token != 0 {
			token = strconv.FormatUint(s.Token, 10)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			printable(s.Key), token, count(s.Holds), waiters, since, until, orUnknown(s.Label), orUnknown(s.Host), count(s.PID))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := w.Write(text.Bytes())
	return err
}
