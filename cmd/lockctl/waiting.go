package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

// announcement tells somebody at a terminal for whom lockctl waits, if it waits for long.
type announcement struct {
	cancel context.CancelFunc
	timer  *time.Timer
	done   chan struct{}
}

// onTerminal reports whether messages go to somebody who reads them as they come.
func (p *printer) onTerminal() bool {
	f, ok := p.w.(*os.File)
	if !ok {
		return false
	}
	_, ok = columns(f)
	return ok
}

// announce begins a wait for the key. Without a terminal nothing is said, and nothing asked.
func (p *printer) announce(l lock.Locker, key string) *announcement {
	ctx, cancel := context.WithTimeout(context.Background(), patient+whoLimit)
	a := &announcement{cancel: cancel, done: make(chan struct{})}
	if !p.onTerminal() {
		close(a.done)
		return a
	}
	a.timer = time.AfterFunc(patient, func() {
		defer close(a.done)
		text := "waiting for " + fmt.Sprintf("%q", key) + whoHolds(ctx, l, key)
		if !errors.Is(ctx.Err(), context.Canceled) {
			p.note(text)
		}
	})
	return a
}

// ended says that the wait has ended.
func (a *announcement) ended() {
	a.cancel()
	if a.timer != nil && a.timer.Stop() {
		close(a.done)
	}
}

// join waits until the server is not asked any more.
func (a *announcement) join() { <-a.done }

// whoHolds says who holds the key, and is empty where that can't be known.
func whoHolds(ctx context.Context, l lock.Locker, key string) string {
	if two, ok := l.(*twoStores); ok {
		return cmp.Or(whoHolds(ctx, two.each[0], key), whoHolds(ctx, two.each[1], key))
	}
	c, ok := l.(interface{ Backend() backend.Backend })
	if !ok {
		return ""
	}
	in, ok := backend.As[backend.Inspector](c.Backend())
	if !ok {
		return ", which somebody else holds"
	}
	rec, err := in.Inspect(ctx, key)
	if host, _ := os.Hostname(); err != nil || rec.Holder.PID == os.Getpid() && rec.Holder.Host == host {
		return "" // this process has the first of two backends
	}
	text := fmt.Sprintf(", which is held by %s", rec.Holder)
	if since := rec.Holder.Since; !since.IsZero() {
		if d := time.Since(since); d >= 0 {
			text += fmt.Sprintf(" (for %s so far)", round(d))
		}
	}
	return text
}
