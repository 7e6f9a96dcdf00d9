package otellock

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/mortiselock/lock"
)

// metrics are the instruments, in the order of the table in docs/operating.md.
type metrics struct {
	holders         metric.Int64UpDownCounter
	waiters         metric.Int64UpDownCounter
	acquisitions    metric.Int64Counter
	waitDuration    metric.Float64Histogram
	holdDuration    metric.Float64Histogram
	attemptDuration metric.Float64Histogram
	renewalDuration metric.Float64Histogram
	losses          metric.Int64Counter
	releases        metric.Int64Counter

	begun sync.Map // attribute.Distinct of what was granted before
}

// Boundaries of histograms, in seconds: of what a server does, and of what people wait for.
var (
	ofRequests = metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10)
	ofWork     = metric.WithExplicitBucketBoundaries(.01, .1, 1, 5, 15, 60, 300, 900, 3600, 4*3600, 24*3600)
)

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{}
	var errs []error
	gauge := func(to *metric.Int64UpDownCounter, name, unit, description string) {
		var err error
		*to, err = meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
	}
	counter := func(to *metric.Int64Counter, name, unit, description string) {
		var err error
		*to, err = meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
	}
	duration := func(to *metric.Float64Histogram, name string, boundaries metric.HistogramOption, description string) {
		var err error
		*to, err = meter.Float64Histogram(name, metric.WithUnit("s"), boundaries, metric.WithDescription(description))
		errs = append(errs, err)
	}
	gauge(&m.holders, "mortise.holders", "{lease}", "Leases that are held now.")
	gauge(&m.waiters, "mortise.waiters", "{call}", "Calls of Acquire that wait now.")
	counter(&m.acquisitions, "mortise.acquisitions", "{call}", "Calls of Acquire and TryAcquire that have ended, by outcome.")
	duration(&m.waitDuration, "mortise.wait.duration", ofWork, "How long the calls of Acquire took that had to wait, by outcome.")
	duration(&m.holdDuration, "mortise.hold.duration", ofWork, "How long leases were held.")
	duration(&m.attemptDuration, "mortise.attempt.duration", ofRequests, "How long the server took to answer when it was asked for a key. Where it has a queue, that includes the time there.")
	duration(&m.renewalDuration, "mortise.renewal.duration", ofRequests, "How long renewals took. Those with an error.type have failed.")
	counter(&m.losses, "mortise.losses", "{lease}", "Leases that ended before their release, by cause.")
	counter(&m.releases, "mortise.releases", "{lease}", "Leases that were released, by outcome.")
	return m, errors.Join(errs...)
}

// zeros are the attributes of counters that alerts look at. They are told with zero when a
// lease begins, since no rate sees a time series that begins with one.
var zeros = struct{ losses, releases []attribute.KeyValue }{
	losses:   []attribute.KeyValue{causeAttr.String("expired"), causeAttr.String("taken_over"), causeAttr.String("session_lost"), causeAttr.String("max_hold")},
	releases: []attribute.KeyValue{outcomeAttr.String(unconfirmed)},
}

func (m *metrics) observe(ctx context.Context, e lock.Event, about []attribute.KeyValue) {
	of := attribute.NewSet(about...)
	with := func(more attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributes(append(about, more)...)
	}
	failed := func() metric.MeasurementOption {
		if e.Err == nil {
			return metric.WithAttributeSet(of)
		}
		return with(errorAttr.String(failure(e.Err)))
	}
	took := e.Duration.Seconds()
	switch e.Kind {
	case lock.EventAttempt:
		m.attemptDuration.Record(ctx, took, failed())
	case lock.EventWaitBegun:
		m.waiters.Add(ctx, 1, metric.WithAttributeSet(of))
	case lock.EventWaitEnded:
		m.waiters.Add(ctx, -1, metric.WithAttributeSet(of))
		m.waitDuration.Record(ctx, took, with(outcomeAttr.String(outcome(e.Err))))
		if e.Err != nil { // else EventGranted tells of the same call
			m.acquisitions.Add(ctx, 1, with(outcomeAttr.String(outcome(e.Err))))
		}
	case lock.EventGranted, lock.EventRefused:
		m.acquisitions.Add(ctx, 1, with(outcomeAttr.String(outcome(e.Err))))
		if e.Kind == lock.EventGranted {
			m.begin(ctx, of, with)
			m.holders.Add(ctx, 1, metric.WithAttributeSet(of))
		}
	case lock.EventRenewed, lock.EventRenewalFailed:
		m.renewalDuration.Record(ctx, took, failed())
	case lock.EventLost:
		m.ended(ctx, e, of)
		m.losses.Add(ctx, 1, with(causeAttr.String(failure(e.Err))))
	case lock.EventReleased:
		m.ended(ctx, e, of)
		m.releases.Add(ctx, 1, with(outcomeAttr.String(released(e.Err))))
	}
}

func (m *metrics) ended(ctx context.Context, e lock.Event, of attribute.Set) {
	m.holders.Add(ctx, -1, metric.WithAttributeSet(of))
	m.holdDuration.Record(ctx, e.Duration.Seconds(), metric.WithAttributeSet(of))
}

// begin tells of the zeros, once for the same attributes.
func (m *metrics) begin(ctx context.Context, of attribute.Set, with func(attribute.KeyValue) metric.MeasurementOption) {
	if _, again := m.begun.LoadOrStore(of.Equivalent(), nil); again {
		return
	}
	for _, cause := range zeros.losses {
		m.losses.Add(ctx, 0, with(cause))
	}
	for _, outcome := range zeros.releases {
		m.releases.Add(ctx, 0, with(outcome))
	}
}
