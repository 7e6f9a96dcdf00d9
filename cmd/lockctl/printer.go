package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/mortiselock/lock/backend"
)

// printer writes lines for people, each with the name of the tool in front, and
// keeps passwords out of them. It is safe for concurrent use.
type printer struct {
	w    io.Writer
	done chan struct{} // closed when the last warning is written

	// quiet: no warning about how something is set up.
	quiet bool

	mu     sync.Mutex
	lines  chan string
	closed bool
	hidden []string // pairs of what must not be printed and what is printed instead
	named  []*regexp.Regexp
}

func newPrinter(w io.Writer) *printer {
	p := &printer{w: w, lines: make(chan string, 64), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for line := range p.lines {
			_, _ = io.WriteString(p.w, line)
		}
	}()
	return p
}

// warn prints in the background: somebody who does not read our stderr must not
// hold up renewal or the stopping of the command. What the buffer cannot take is
// dropped, and so is everything after close.
func (p *printer) warn(message string) { p.note("warning: " + message) }

// note is warn for what is nothing to warn of.
func (p *printer) note(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	select {
	case p.lines <- p.line(message):
	default:
	}
}

// patient is for how long a server may take to answer before lockctl says that it waits.
const patient = time.Second

// opens is called before the backend of the URL is opened. It says so if that has not ended
// soon. The function ends it.
func (p *printer) opens(url string) (ended func()) {
	u, err := backend.ParseURL(url)
	if err != nil {
		return func() {}
	}
	t := time.AfterFunc(patient, func() {
		p.note(fmt.Sprintf("still trying to reach %s", u))
	})
	return func() { t.Stop() }
}

// say prints the last message, after the warnings that came before it.
func (p *printer) say(message string) {
	p.close()
	p.mu.Lock()
	line := p.line(message)
	p.mu.Unlock()
	_, _ = io.WriteString(p.w, line)
}

// close waits until the warnings are written, for a second at most.
func (p *printer) close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.lines)
	}
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-time.After(time.Second):
	}
}

// hide keeps the secrets of a URL out of what is printed: wherever they stand as a
// password does in a URL or after the word for one, and anywhere when they can be
// nothing else. That a short
// secret or a word turns up elsewhere tells nobody anything, and to replace it there
// would: a password "app" would be read off the gaps in the text. shown is the URL as
// it may be printed.
func (p *printer) hide(shown string, secrets ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range secrets {
		if s == "" {
			continue
		}
		p.hidden = append(p.hidden, ":"+s+"@", ":"+blank+"@")
		p.named = append(p.named, regexp.MustCompile(`(?i:(\b(?:auth|password|passwd|pass|pwd|secret)["'\s:=(]+))`+regexp.QuoteMeta(s)+`($|[^\pL\pN])`))
		if distinctive(s) && !strings.Contains(shown, s) {
			p.hidden = append(p.hidden, s, blank)
		}
	}
}

// userInfo is what may be a password in a URL that stands where something else is expected.
var userInfo = regexp.MustCompile(`([a-z][a-z0-9+.-]*://[^\s/"@:]*:)[^\s/"]+@`)

// blank is what stands in place of a secret.
const blank = "xxxxx"

// distinctive reports whether a text can only be the secret that it is: it is long, or
// it mixes letters with something else.
func distinctive(s string) bool {
	letters := strings.ContainsFunc(s, unicode.IsLetter)
	others := strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsLetter(r) })
	return len(s) >= 16 || len(s) >= 6 && letters && others
}

func (p *printer) line(message string) string {
	// In one pass, so that what was put in is not looked at again.
	message = strings.NewReplacer(p.hidden...).Replace(message)
	for _, n := range p.named {
		message = n.ReplaceAllString(message, "${1}"+blank+"${2}")
	}
	message = userInfo.ReplaceAllString(message, "${1}"+blank+"@")
	return "lockctl: " + printableLines(strings.TrimRight(message, "\n")) + "\n"
}

// logger passes the warnings of the lock package on.
func (p *printer) logger() *slog.Logger { return slog.New(&warnings{printer: p}) }

// lookLogger is the same for commands that take no hold, to whom it does not matter how
// something is set up.
func (p *printer) lookLogger() *slog.Logger { return slog.New(&warnings{printer: p, look: true}) }

// warnings is a slog.Handler for people: "message (name: value, name: value)".
type warnings struct {
	printer *printer
	attrs   []slog.Attr
	look    bool // no warning about how something is set up
}

// seen are the attributes of warnings about what has happened, or is not there. All other
// warnings are about how a server, its user or a client is set up.
var seen = []string{"key", "node", "member", "directory", "file", "table", "prefix"}

func (h *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (h *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "lock lost" {
		return nil // the tool says so itself, with what became of the command
	}
	var details []string
	setup := true
	add := func(a slog.Attr) bool {
		setup = setup && !slices.Contains(seen, a.Key)
		if a.Key != "" {
			details = append(details, fmt.Sprintf("%s: %v", a.Key, a.Value.Resolve()))
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	if setup && (h.look || h.printer.quiet) {
		return nil
	}
	text := strings.TrimPrefix(r.Message, "lock: ")
	if len(details) > 0 {
		text += " (" + strings.Join(details, ", ") + ")"
	}
	h.printer.warn(text)
	return nil
}

func (h *warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &warnings{h.printer, append(append([]slog.Attr(nil), h.attrs...), attrs...), h.look}
}

// WithGroup drops the name of the group, which would only lengthen the line.
func (h *warnings) WithGroup(string) slog.Handler { return h }
