package flawed

import (
	"context"
	"time"

	"github.com/mortiselock/lock/backend"
)

var z109 = Lock{
	ID: "Z109", Title: "milliseconds in 32 bits",
	Summary: "A TTL of more than 24 days wraps around, and the hold ends early.",
	Seen:    "INT columns and int32 parameters for a number of milliseconds, filled by a conversion that does not check.",
	Instead: "Use 64 bits, or refuse what does not fit: that is what MaxTTL is for.",
	File:    "ttl_in_32_bits.go", Over: Memory,
	Rule: "TTLRange",
	Also: []string{"HeldDetails", "TTLGrain", "EveryTTLLasts"},
	On:   onMemory(func(m primitives) backend.Backend { return in32Bits{m} }),
}

// in32Bits counts the milliseconds of a TTL in a uint32.
//
//	A: TryAcquire("archive", WithTTL(50*24*time.Hour)) -> granted; 4,320,000,000 ms are 25,032,704 in 32 bits
//	B, after seven hours: granted, beside A
//
// Caught by TTLRange, which asks for the largest TTL that is promised and looks what others
// are told of it.
//
// Instead: int64.
type in32Bits struct{ primitives }

// Try implements backend.Backend.
func (w in32Bits) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	asked := req.TTL
	if ms := asked.Milliseconds(); ms > 1<<32 {
		req.TTL = time.Duration(uint32(ms)) * time.Millisecond
	}
	g, err := w.primitives.Try(ctx, req)
	if err == nil {
		g.For = backend.ValidFor(asked)
	}
	return g, err
}
