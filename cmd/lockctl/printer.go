package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// printer writes lines for people, each with the name of the tool in front, and
// keeps passwords out of them. It is safe for concurrent use.
type printer struct {
	w    io.Writer
	done chan struct{} // closed when the last warning is written

	mu      sync.Mutex
	lines   chan string
	closed  bool
	secrets []string
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
func (p *printer) warn(message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	select {
	case p.lines <- p.line("warning: " + message):
	default:
	}
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

// hide makes the printer replace the secrets wherever they turn up.
func (p *printer) hide(secrets ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range secrets {
		if s != "" {
			p.secrets = append(p.secrets, s)
		}
	}
}

func (p *printer) line(message string) string {
	for _, s := range p.secrets {
		message = strings.ReplaceAll(message, s, "xxxxx")
	}
	return "lockctl: " + strings.TrimRight(message, "\n") + "\n"
}

// logger passes the warnings of the lock package on.
func (p *printer) logger() *slog.Logger { return slog.New(&warnings{printer: p}) }

// warnings is a slog.Handler for people: "message (name: value, name: value)".
type warnings struct {
	printer *printer
	attrs   []slog.Attr
}

func (h *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (h *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "lock lost" {
		return nil // the tool says so itself, with what became of the command
	}
	var details []string
	add := func(a slog.Attr) bool {
		if a.Key != "" {
			details = append(details, fmt.Sprintf("%s: %v", a.Key, a.Value.Resolve()))
		}
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	text := strings.TrimPrefix(r.Message, "lock: ")
	if len(details) > 0 {
		text += " (" + strings.Join(details, ", ") + ")"
	}
	h.printer.warn(text)
	return nil
}

func (h *warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &warnings{h.printer, append(append([]slog.Attr(nil), h.attrs...), attrs...)}
}

// WithGroup drops the name of the group, which would only lengthen the line.
func (h *warnings) WithGroup(string) slog.Handler { return h }
