package rules

import (
	"errors"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

// longestNames uses a key, a label and owners of the largest size together. The owners
// differ in one byte: the last, one in the middle, or the first after what marks them as the suite's.
func longestNames(e *engine.Env) {
	a, b := e.Locker(), e.Locker()
	key := filled(e.Key(""), backend.MaxKey)
	label := filled(" \u00e4 ", backend.MaxOwner-1) + " "
	var opts []lock.Option
	if hasLabels(a) {
		opts = append(opts, lock.WithLabel(label))
	}
	entering := engine.ClaimReentrancy.Made(e.Settings)
	named := e.Owner("A")
	stem := filled(named, backend.MaxOwner-1)
	if entering {
		opts = append(opts, lock.WithOwner(stem+"1"))
	}
	h := a.MustTry(key, opts...)
	if h.Lease.Key() != key {
		e.Failf(key, "Lease.Key is %s; expected %s", engine.QuoteKey(h.Lease.Key()), engine.QuoteKey(key))
	}
	err := b.Refusal(key, "another client holds it")
	if held := (*lock.HeldError)(nil); errors.As(err, &held) {
		if held.Key != key && (held.Key != "" || e.Claimed.HolderDetails) {
			e.Failf(key, "the refusal names the key %s; expected the whole one, of %d bytes", engine.QuoteKey(held.Key), len(key))
		}
		if e.Claimed.HolderDetails && held.Holder.Label != label {
			e.Failf(key, "the refusal names a label of %d bytes; expected the whole one, of %d, which begins and ends with a space", len(held.Holder.Label), len(label))
		}
	}
	if entering {
		for _, c := range []*engine.Client{a, b} {
			c.MustRefuse(key, "its owner's name is of the largest size, and differs from the holder's in the last byte", lock.WithOwner(stem+"2"))
			for _, at := range []int{len(named), (len(named) + len(stem)) / 2} {
				c.MustRefuse(key, "its owner's name is of the largest size, and differs from the holder's in one byte before the last", lock.WithOwner(stem[:at]+"y"+stem[at+1:]+"1"))
			}
		}
		a.MustTry(key, opts...).MustRelease()
	}
	if e.Claimed.ManualRenewal {
		if err := h.Renew(); err != nil {
			e.UnexpectedLate(key, err, "Renew of a lease with names of the largest size returned %s; expected no error", engine.Outcome(err))
		}
	}
	b.MustRefuse(key, "another client holds it")
	h.MustRelease()
	b.MustTry(key, opts...).MustRelease()
}

// hasLabels reports whether the lock takes labels: where refusals tell nothing of the holder
// it may refuse them.
func hasLabels(c *engine.Client) bool {
	if c.Env.Claimed.HolderDetails {
		return true
	}
	h, err := c.Try(c.Env.Key("with a label"), lock.WithLabel("a label"))
	if err == nil {
		h.MustRelease()
	}
	return !errors.Is(err, lock.ErrUnsupported)
}

// filled makes a text of the size.
func filled(text string, size int) string { return text + strings.Repeat("z", size-len(text)) }
