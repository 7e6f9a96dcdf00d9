package otellock

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock"
)

func TestFailures(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"":             nil,
		"held":         fmt.Errorf("gave up: %w; %w; %w", context.DeadlineExceeded, &lock.HeldError{}, lock.ErrOutcomeUnknown),
		"unavailable":  fmt.Errorf("gave up: %w; %w; %w", context.Canceled, lock.ErrHeld, lock.ErrUnavailable),
		"canceled":     fmt.Errorf("%w: %w", lock.ErrOutcomeUnknown, context.Canceled),
		"timeout":      fmt.Errorf("%w: %w", lock.ErrOutcomeUnknown, context.DeadlineExceeded),
		"unknown":      lock.ErrOutcomeUnknown,
		"permanent":    lock.ErrPermanent,
		"closed":       lock.ErrClosed,
		"expired":      lock.ErrExpired,
		"taken_over":   lock.ErrTakenOver,
		"session_lost": lock.ErrSessionLost,
		"max_hold":     lock.ErrMaxHold,
		"not_held":     lock.ErrNotHeld,
		"_OTHER":       errors.New("something else"),
	} {
		assert.Equal(t, want, failure(err))
	}
	assert.Equal(t, "granted", outcome(nil))
	for want, err := range map[string]error{
		confirmed:   nil,
		unconfirmed: fmt.Errorf("%w: %w", lock.ErrOutcomeUnknown, lock.ErrUnavailable),
		closed:      lock.ErrClosed,
	} {
		assert.Equal(t, want, released(err))
	}
}
