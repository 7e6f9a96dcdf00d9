package otellock

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/mortiselock/lock"
)

type spans struct {
	tracer trace.Tracer
	waits  sync.Map // leaseID to the trace.SpanContext of its wait, until it is granted
	holds  sync.Map // leaseID to the trace.Span of its hold
}

// leaseID has more than the number of the lease, for those who share an observer all the same.
type leaseID struct {
	backend, key string
	lease, token uint64
}

func idOf(e lock.Event) leaseID { return leaseID{e.Backend, e.Key, e.Lease, e.Token} }

func (s *spans) observe(ctx context.Context, e lock.Event, about []attribute.KeyValue) {
	switch e.Kind {
	case lock.EventWaitEnded:
		s.waited(ctx, e, about)
	case lock.EventGranted:
		s.granted(ctx, e, about)
	case lock.EventRenewalFailed:
		if span, ok := s.holds.Load(idOf(e)); ok {
			span.(trace.Span).AddEvent("renewal failed", trace.WithAttributes(errorAttr.String(failure(e.Err))))
		}
	case lock.EventLost:
		s.ended(ctx, e, func(span trace.Span) { fail(span, e.Err) })
	case lock.EventReleased:
		s.ended(ctx, e, func(span trace.Span) {
			span.SetAttributes(outcomeAttr.String(released(e.Err)))
			if e.Err != nil {
				fail(span, e.Err)
			}
		})
	}
}

// waited makes the span of a wait that has ended: its beginning has no number by which it
// could be found again.
func (s *spans) waited(ctx context.Context, e lock.Event, about []attribute.KeyValue) {
	now := time.Now()
	_, span := s.tracer.Start(ctx, "mortise.wait", trace.WithTimestamp(now.Add(-e.Duration)), trace.WithAttributes(append(about, outcomeAttr.String(outcome(e.Err)))...))
	if e.Err != nil {
		fail(span, e.Err)
	} else {
		span.SetAttributes(tokenAttr.Int64(int64(e.Token)))
		if of := span.SpanContext(); of.IsSampled() {
			s.waits.Store(idOf(e), of)
		}
	}
	span.End(trace.WithTimestamp(now))
}

func (s *spans) granted(ctx context.Context, e lock.Event, about []attribute.KeyValue) {
	opts := []trace.SpanStartOption{trace.WithAttributes(append(about, tokenAttr.Int64(int64(e.Token)))...)}
	if wait, ok := s.waits.LoadAndDelete(idOf(e)); ok {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: wait.(trace.SpanContext)}))
	}
	_, span := s.tracer.Start(ctx, "mortise.hold", opts...)
	if span.IsRecording() {
		s.holds.Store(idOf(e), span)
	}
}

func (s *spans) ended(ctx context.Context, e lock.Event, how func(trace.Span)) {
	v, ok := s.holds.LoadAndDelete(idOf(e))
	if !ok {
		return
	}
	span := v.(trace.Span)
	how(span)
	if by := trace.LinkFromContext(ctx); by.SpanContext.IsValid() {
		span.AddLink(by)
	}
	span.End()
}

// fail marks a span. The text of the error may have the key, which is not told unasked.
func fail(span trace.Span, err error) {
	span.SetAttributes(errorAttr.String(failure(err)))
	span.SetStatus(codes.Error, failure(err))
}
