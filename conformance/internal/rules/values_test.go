package rules_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mortiselock/lock/backend"
)

// cutKey is a key in a column that is too short.
func cutKey(key string) string { return key[:min(len(key), 500)] }

// escapedKey is a key that is escaped once too often.
func escapedKey(key string) string { return strings.ReplaceAll(key, `\`, `\\`) }

// most32Bits is the longest TTL in milliseconds of 32 bits, with a sign.
const most32Bits = (1<<31 - 1) * time.Millisecond

// wholeSeconds is a TTL without what is beside whole seconds.
func wholeSeconds(ttl time.Duration) time.Duration {
	return max(ttl.Truncate(time.Second), min(ttl, time.Second))
}

// handsAnother hands over something else than it was asked for, and says that it was that.
func handsAnother(change func(from *backend.Hold, to *backend.Request)) func(m *bent) {
	return func(m *bent) {
		m.hand = func(ctx context.Context, from backend.Hold, to backend.Request) (backend.Grant, error) {
			ttl := to.TTL
			change(&from, &to)
			g, err := m.able.HandOver(ctx, from, to)
			if err == nil {
				g.For = backend.ValidFor(ttl)
			}
			return g, err
		}
	}
}

// renewsAnother renews something else in a batch than it was asked for, and says that it was that.
func renewsAnother(change func(h *backend.Hold)) func(m *bent) {
	return func(m *bent) {
		m.batch = func(ctx context.Context, h backend.Hold) (out backend.Renewal) {
			ttl := h.TTL
			change(&h)
			out.Validity, out.Err = m.able.Renew(ctx, h)
			if out.Err == nil {
				out.Validity.For = backend.ValidFor(ttl)
			}
			return out
		}
	}
}

// showsMore shows a second more of each hold than is left.
func showsMore(m *bent) {
	m.inspected(func(rec backend.Record) (backend.Record, bool) { rec.Remaining += time.Second; return rec, true })
	m.refusals(func(held *backend.HeldError, _ backend.Request) { held.Remaining += time.Second })
}

// TestMutantsOfValues: one ability takes less than a try.
func TestMutantsOfValues(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for name, c := range map[string]struct {
		rule, says string
		change     func(m *bent)
	}{
		"keys with a backslash are not handed over": {"AbilitiesTakeAnyValue", "HandOver of the key", handsAnother(func(from *backend.Hold, to *backend.Request) {
			from.Key, to.Key = escapedKey(from.Key), escapedKey(to.Key)
		})},
		"long keys are not handed over": {"AbilitiesTakeAnyValue", "HandOver of the key", handsAnother(func(from *backend.Hold, to *backend.Request) {
			from.Key, to.Key = cutKey(from.Key), cutKey(to.Key)
		})},
		"an owner to whom a key is handed over loses a space": {"AbilitiesTakeAnyValue", "whose name differs in the last byte", handsAnother(func(_ *backend.Hold, to *backend.Request) {
			to.Owner = strings.TrimSuffix(to.Owner, " ")
		})},
		"an owner to whom a key is handed over is cut": {"AbilitiesTakeAnyValue", "who has an unusual name, tried it once more", handsAnother(func(_ *backend.Hold, to *backend.Request) {
			to.Owner = to.Owner[:min(len(to.Owner), 250)]
		})},
		"a label that is handed over is escaped": {"AbilitiesTakeAnyValue", "shows the holder", handsAnother(func(_ *backend.Hold, to *backend.Request) {
			to.Holder.Label = escapedKey(to.Holder.Label)
		})},
		"a label that is handed over is cut": {"AbilitiesTakeAnyValue", "shows the holder", handsAnother(func(_ *backend.Hold, to *backend.Request) {
			to.Holder.Label = to.Holder.Label[:min(len(to.Holder.Label), 255)]
		})},
		"a hand-over has TTLs in 32 bits": {"AbilitiesTakeAnyValue", "Inspect of a hold that was handed over", handsAnother(func(_ *backend.Hold, to *backend.Request) {
			to.TTL = min(to.TTL, most32Bits)
		})},
		"a hand-over has TTLs of whole seconds": {"AbilitiesTakeAnyValue", "Inspect of a hold that was handed over to a request with a TTL of 1.9s", handsAnother(func(_ *backend.Hold, to *backend.Request) {
			to.TTL = wholeSeconds(to.TTL)
		})},
		"long keys are not renewed in a batch":             {"AbilitiesTakeAnyValue", "RenewBatch for a hold of the key", renewsAnother(func(h *backend.Hold) { h.Key = cutKey(h.Key) })},
		"keys with a backslash are not renewed in a batch": {"AbilitiesTakeAnyValue", "RenewBatch for a hold of the key", renewsAnother(func(h *backend.Hold) { h.Key = escapedKey(h.Key) })},
		"a batch has TTLs in 32 bits":                      {"AbilitiesTakeAnyValue", "Inspect of a hold that a batch renewed", renewsAnother(func(h *backend.Hold) { h.TTL = min(h.TTL, most32Bits) })},
		"a batch has TTLs of whole seconds":                {"AbilitiesTakeAnyValue", "Inspect of a hold that a batch renewed by 1.9s", renewsAnother(func(h *backend.Hold) { h.TTL = wholeSeconds(h.TTL) })},
		"a hand-over has TTLs of whole seconds, and nobody is shown that": {"AbilitiesTakeAnyValue", "before the end of a hold that was handed over", func(m *bent) {
			showsMore(m)
			handsAnother(func(_ *backend.Hold, to *backend.Request) { to.TTL = wholeSeconds(to.TTL) })(m)
		}},
		"a batch has TTLs of whole seconds, and nobody is shown that": {"AbilitiesTakeAnyValue", "before the end of a hold that a batch renewed", func(m *bent) {
			showsMore(m)
			renewsAnother(func(h *backend.Hold) { h.TTL = wholeSeconds(h.TTL) })(m)
		}},
		"a release of a key with a backslash tells of nobody": {"AbilitiesTakeAnyValue", "tells of no other client", func(m *bent) {
			m.tell = func(ctx context.Context, h backend.Hold) (int, error) {
				n, err := m.able.ReleaseTelling(ctx, h)
				if strings.Contains(h.Key, `\`) {
					n = 0
				}
				return n, err
			}
		}},
		"keys with a backslash are not revoked": {"AbilitiesTakeAnyValue", "Revoke of the key", func(m *bent) {
			m.revoke = func(ctx context.Context, key string, token uint64) error {
				return m.able.Revoke(ctx, escapedKey(key), token)
			}
		}},
		"long keys are not revoked": {"AbilitiesTakeAnyValue", "Revoke of the key", func(m *bent) {
			m.revoke = func(ctx context.Context, key string, token uint64) error {
				return m.able.Revoke(ctx, cutKey(key), token)
			}
		}},
		"long keys are not released by force": {"AbilitiesTakeAnyValue", "ForceRelease of the key", func(m *bent) {
			m.force = func(ctx context.Context, key string, token uint64) error {
				return m.able.ForceRelease(ctx, cutKey(key), token)
			}
		}},
		"long keys are not shown": {"AbilitiesTakeAnyValue", "Inspect of the held key", func(m *bent) {
			m.inspect = func(ctx context.Context, key string) (backend.Record, error) { return m.able.Inspect(ctx, cutKey(key)) }
		}},
	} {
		atOnce(t, &all, name, func(t *testing.T) { mustSay(t, bending(c.change), c.rule, c.says) })
	}
	atOnce(t, &all, "nothing is wrong", func(t *testing.T) { mustPass(t, bending(func(*bent) {}), "AbilitiesTakeAnyValue") })
	all.Wait()
}
