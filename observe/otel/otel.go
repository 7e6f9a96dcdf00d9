// Package otellock tells OpenTelemetry what happens in a [lock.Client]: who holds and who
// waits now, how long both take, what fails, and spans for waits and holds.
//
// docs/operating.md lists the metrics. Each has the attributes mortise.backend and, where
// there is one, mortise.label. A label with many values makes many time series: choose
// labels for kinds of work, or leave the attribute out by a view of the SDK.
package otellock

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/mortiselock/lock"
)

// scope names this instrumentation.
const scope = "github.com/mortiselock/lock/observe/otel"

// Options are the settings of an observer. A nil pointer means the defaults.
type Options struct {
	// MeterProvider gets the metrics. Default: the global one.
	MeterProvider metric.MeterProvider
	// TracerProvider gets the spans. Default: the global one.
	TracerProvider trace.TracerProvider
	// Keys adds the key to metrics and spans, as the attribute mortise.key. Each key makes
	// time series of its own, which are kept as long as the process runs: only for programs
	// with few keys. Default: no key is told.
	Keys bool
}

// NewObserver returns an observer for [lock.Options]. Each Client gets one of its own. The
// error is that of a MeterProvider that refuses an instrument.
//
// A wait is one span, mortise.wait, which is made when it has ended. A hold is one span,
// mortise.hold, from the grant to its end, with an event for each failed renewal. Both are
// children of the span in the context of Acquire or TryAcquire. The hold links to its wait,
// and to the span in the context of its Release.
func NewObserver(opts *Options) (lock.Observer, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	m, err := newMetrics(o.MeterProvider.Meter(scope))
	if err != nil {
		return nil, err
	}
	s := &spans{tracer: o.TracerProvider.Tracer(scope)}
	return func(ctx context.Context, e lock.Event) {
		about := o.about(e)
		m.observe(ctx, e, about)
		s.observe(ctx, e, about)
	}, nil
}

// The attributes.
const (
	backendAttr = attribute.Key("mortise.backend")
	labelAttr   = attribute.Key("mortise.label")
	keyAttr     = attribute.Key("mortise.key")
	outcomeAttr = attribute.Key("mortise.outcome") // of an acquisition, a wait, a release
	causeAttr   = attribute.Key("mortise.cause")   // of a loss
	tokenAttr   = attribute.Key("mortise.token")   // of a span
	errorAttr   = attribute.Key("error.type")      // of an attempt, a renewal, a span
)

// about returns the attributes that all events of a lease or a wait share. Nothing can be
// appended to them in place.
func (o *Options) about(e lock.Event) []attribute.KeyValue {
	about := make([]attribute.KeyValue, 0, 3)
	about = append(about, backendAttr.String(e.Backend))
	if e.Label != "" {
		about = append(about, labelAttr.String(e.Label))
	}
	if o.Keys {
		about = append(about, keyAttr.String(e.Key))
	}
	return about[:len(about):len(about)]
}
