package flawed

import (
	"context"

	"github.com/mortiselock/lock/backend"
)

var z72 = Lock{
	ID: "Z72", Title: "an owner that is cut to the size of its column",
	Summary: "Owners that begin with the same 255 bytes both hold.",
	Seen:    "VARCHAR(255) in a session that is not strict: MySQL cuts with a warning.",
	Instead: "A wide column, a strict session, or a hash.",
	File:    "owner_cut.go", Over: Memory,
	Rule: "LongestNames",
	On:   onMemory(func(m primitives) backend.Backend { return ownerCut{m} }),
}

// ownerCut keeps what its column has room for.
//
//	A: INSERT ... owner = 'tenant-...-1'   -> OK, 1 warning: Data truncated for column 'owner'
//	B: SELECT owner ...: 'tenant-...-'; its own, cut in the same way, is equal: it enters
//
// Names are seldom that long, until somebody puts a path or a token of a login into them.
// Caught by LongestNames, whose owners differ in the last byte.
//
// Instead: refuse what does not fit, or keep a hash.
type ownerCut struct{ primitives }

func cut(owner string) string { return owner[:min(len(owner), 255)] }

func (o ownerCut) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	req.Owner = cut(req.Owner)
	return o.primitives.Try(ctx, req)
}

func (o ownerCut) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	hold.Owner = cut(hold.Owner)
	return o.primitives.Renew(ctx, hold)
}

func (o ownerCut) Release(ctx context.Context, hold backend.Hold) error {
	hold.Owner = cut(hold.Owner)
	return o.primitives.Release(ctx, hold)
}
