package faultlock

import (
	"context"
	"errors"

	"github.com/mortiselock/lock/backend"
)

// errBroken is the cause of the end of a watch that was broken.
var errBroken = errors.New("faultlock: the watch was broken")

// watch hands the signals of a watch of the inner backend on.
type watch struct {
	s      *faulty
	key    string
	ctx    context.Context
	cancel context.CancelCauseFunc
	in     <-chan backend.Hint
	out    chan backend.Hint
}

// Watch implements backend.Watcher.
func (s *faulty) Watch(ctx context.Context, key string) (<-chan backend.Hint, error) {
	inner, ok := backend.As[backend.Watcher](s.inner)
	if !ok {
		return nil, lacks[backend.Watcher]()
	}
	abandon := func(t *watch) { t.cancel(nil) }
	t, err := carry(ctx, s, OpWatch, key, abandon, func(ctx context.Context) (*watch, error) {
		t := &watch{s: s, key: key, out: make(chan backend.Hint, 1)}
		t.ctx, t.cancel = context.WithCancelCause(ctx)
		in, err := inner.Watch(t.ctx, key)
		if err != nil {
			t.cancel(nil)
			return nil, err
		}
		t.in = in
		return t, nil
	})
	if err != nil {
		return nil, err
	}
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		t.cancel(nil)
		return nil, backend.ErrClosed
	}
	f.watches[t] = struct{}{}
	f.running.Go(t.run)
	return t.out, nil
}

// run hands signals on until the watch ends. The channel is closed when it broke,
// and not when its context ended.
func (t *watch) run() {
	defer func() {
		t.s.f.mu.Lock()
		delete(t.s.f.watches, t)
		t.s.f.mu.Unlock()
		t.cancel(nil)
	}()
	for {
		select {
		case hint, ok := <-t.in:
			if !ok || !t.pass(hint) {
				close(t.out)
				return
			}
		case <-t.ctx.Done():
			if context.Cause(t.ctx) == errBroken {
				close(t.out)
			}
			return
		}
	}
}

// pass carries one signal. It returns false when the watch broke by it.
func (t *watch) pass(hint backend.Hint) bool {
	d := t.s.f.meet(t.ctx, OpHint, t.key)
	switch d.kind {
	case failBefore, drop:
		return true
	case delayBefore, delayAfter, applyLate, hangBefore, hangAfter:
		if t.s.f.pause(t.ctx, d) != nil {
			return true // the watch has ended, which run sees
		}
	}
	t.deliver(hint)
	switch d.kind {
	case duplicate:
		select {
		case t.out <- hint:
		case <-t.ctx.Done():
		}
	case failAfter:
		return false
	}
	return true
}

// deliver adds a signal, unless one is waiting already.
func (t *watch) deliver(hint backend.Hint) {
	select {
	case t.out <- hint:
	default:
	}
}
