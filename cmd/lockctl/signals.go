package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
)

// signalled is why a context ended that a signal has ended.
type signalled struct{ sig os.Signal }

func (e signalled) Error() string { return "ended by a signal: " + e.sig.String() }

// untilSignal returns a context that ends with a signal that asks lockctl to end, unless
// whoever started lockctl wants it ignored. A second one ends the process at once, as it
// would without lockctl.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, sig := range waitSignals {
		if endsWait(sig) && !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	go func() {
		select {
		case sig := <-signals:
			signal.Stop(signals)
			cancel(signalled{sig})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// signalStatus is 128+n when signal n has ended the context.
func signalStatus(ctx context.Context) (status int, ok bool) {
	var e signalled
	if !errors.As(context.Cause(ctx), &e) {
		return 0, false
	}
	return exitSignal + signalNumber(e.sig), true
}

// unlessSignalled is the error of work that a signal has cut short: with the status of
// the signal, whatever the work made of the end of its context.
func unlessSignalled(ctx context.Context, err error) error {
	var e *exitError
	status, ended := signalStatus(ctx)
	if !ended || !errors.As(err, &e) || e.code != exitUnavailable {
		return err
	}
	return exitWith(status, "%v: %s", context.Cause(ctx), e.message)
}
