package flawed

import (
	"context"
	"encoding/base64"
	"strings"

	"github.com/mortiselock/lock/backend"
)

var z182 = Lock{
	ID: "Z182", Title: "ids as base64 in a column without case",
	Summary: "Two ids that differ in capitals only are one, so that who knows neither has far fewer to guess.",
	Seen:    "CHAR columns with a collation that ends in _ci, which is the default of many servers.",
	Instead: "BINARY(16), or hexadecimal digits.",
	File:    "ids_without_case.go", Over: Memory,
	Rule: "ReleaseByID",
	Also: []string{"RenewByID", "TryIdempotent"},
	On:   onMemory(func(m primitives) backend.Backend { return idsWithoutCase{m} }),
}

// idsWithoutCase takes all ids that look alike for one.
//
//	A: id ZlNjaw... -> granted
//	B: Release with the id zLNJAW... -> ok, and A's hold has ended
//
// Caught by ReleaseByID, which makes up such ids.
type idsWithoutCase struct{ primitives }

func inColumn(id backend.ID) backend.ID {
	text := strings.ToLower(base64.RawStdEncoding.EncodeToString(id[:]))
	_, _ = base64.RawStdEncoding.Decode(id[:], []byte(text))
	return id
}

// Try implements backend.Backend.
func (i idsWithoutCase) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.ID = inColumn(req.ID)
	return i.primitives.Try(ctx, req)
}

// Renew implements backend.Backend.
func (i idsWithoutCase) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	hold.ID = inColumn(hold.ID)
	return i.primitives.Renew(ctx, hold)
}

// Release implements backend.Backend.
func (i idsWithoutCase) Release(ctx context.Context, hold backend.Hold) error {
	hold.ID = inColumn(hold.ID)
	return i.primitives.Release(ctx, hold)
}
