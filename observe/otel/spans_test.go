package otellock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/mortiselock/lock"
	faultlock "github.com/mortiselock/lock/backend/fault"
	otellock "github.com/mortiselock/lock/observe/otel"
)

func TestSpans(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	l, store, faults, waiting := newClient(t, &otellock.Options{TracerProvider: provider})
	tracer := provider.Tracer("the caller")
	within := func(name string) (context.Context, trace.Span) { return tracer.Start(t.Context(), name) }
	first, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)

	// A wait that is given up, and one that ends with a grant, a failed renewal and a loss.
	ctx, caller := within("caller")
	impatient, giveUp := context.WithCancel(ctx)
	ended := make(chan lock.Lease)
	wait := func(ctx context.Context) {
		lease, _ := l.Acquire(ctx, "k", lock.WithLabel("a label"))
		ended <- lease
	}
	go wait(impatient)
	eventually(t, "a wait", func() bool { return waiting.Load() == 1 })
	giveUp()
	require.Nil(t, <-ended)
	go wait(ctx)
	eventually(t, "another wait", func() bool { return waiting.Load() == 1 })
	releasing, releaser := within("releaser")
	require.NoError(t, first.Release(releasing))
	second := <-ended
	require.NotNil(t, second)
	faults.Next(1, faultlock.Drop(), faultlock.OpRenew)
	require.Error(t, second.Renew(ctx))
	store.Remove("k")
	require.ErrorIs(t, second.Renew(ctx), lock.ErrTakenOver)

	eventually(t, "four spans", func() bool { return len(recorder.Ended()) == 4 })
	waits, holds := map[codes.Code]sdktrace.ReadOnlySpan{}, map[codes.Code]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Ended() {
		switch span.Name() {
		case "mortise.wait":
			waits[span.Status().Code] = span
		case "mortise.hold":
			holds[span.Status().Code] = span
		}
		assert.Contains(t, span.Attributes(), attribute.String("mortise.backend", "memory"))
		for _, a := range span.Attributes() {
			assert.NotEqual(t, "mortise.key", string(a.Key))
		}
		assert.False(t, span.EndTime().Before(span.StartTime()))
	}
	require.Len(t, waits, 2)
	require.Len(t, holds, 2)

	gaveUp := waits[codes.Error]
	assert.Equal(t, caller.SpanContext().SpanID(), gaveUp.Parent().SpanID())
	assert.Contains(t, gaveUp.Attributes(), attribute.String("mortise.outcome", "held"))
	assert.Equal(t, "held", gaveUp.Status().Description)

	granted := waits[codes.Unset]
	assert.Equal(t, caller.SpanContext().SpanID(), granted.Parent().SpanID())
	assert.Contains(t, granted.Attributes(), attribute.Int64("mortise.token", int64(second.Token())))

	lost := holds[codes.Error]
	assert.Equal(t, caller.SpanContext().SpanID(), lost.Parent().SpanID())
	assert.Contains(t, lost.Attributes(), attribute.String("mortise.label", "a label"))
	assert.Contains(t, lost.Attributes(), attribute.String("error.type", "taken_over"))
	assert.Contains(t, lost.Attributes(), attribute.Int64("mortise.token", int64(second.Token())))
	require.NotEmpty(t, lost.Events())
	assert.Equal(t, "renewal failed", lost.Events()[0].Name)
	require.NotEmpty(t, lost.Links())
	assert.Equal(t, granted.SpanContext(), lost.Links()[0].SpanContext)

	released := holds[codes.Unset]
	assert.False(t, released.Parent().IsValid())
	assert.Contains(t, released.Attributes(), attribute.String("mortise.outcome", "confirmed"))
	require.Len(t, released.Links(), 1)
	assert.Equal(t, releaser.SpanContext(), released.Links()[0].SpanContext)
	assert.False(t, lost.StartTime().Before(released.StartTime()))
}

// TestWaitSpanHasTheTimeOfTheWait: it is made afterwards.
func TestWaitSpanHasTheTimeOfTheWait(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	observe, err := otellock.NewObserver(&otellock.Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)), Keys: true})
	require.NoError(t, err)
	now := time.Now()
	observe(t.Context(), lock.Event{Kind: lock.EventWaitBegun, Backend: "b", Key: "k"})
	observe(t.Context(), lock.Event{Kind: lock.EventWaitEnded, Backend: "b", Key: "k", Lease: 1, Token: 5, Duration: time.Hour})
	require.Len(t, recorder.Ended(), 1)
	span := recorder.Ended()[0]
	assert.Equal(t, time.Hour, span.EndTime().Sub(span.StartTime()))
	assert.False(t, span.EndTime().Before(now))
	assert.Contains(t, span.Attributes(), attribute.String("mortise.key", "k"))
}
