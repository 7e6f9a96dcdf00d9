package rules

import (
	"errors"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var keyRules = []*engine.Rule{
	{
		Name:      "KeysAccepted",
		Statement: "Every key of 1 to 512 bytes of valid UTF-8 without control characters is accepted, and the lease names it unchanged.",
		Run:       keysAccepted,
	},
	{
		Name:      "KeysRefused",
		Statement: "Any other key is refused with ErrInvalid, by Acquire too.",
		Run:       keysRefused,
	},
	{
		Name:      "OwnerRefused",
		Statement: "An owner that is empty, longer than 256 bytes, not valid UTF-8, or has control characters is refused with ErrInvalid, and not shown in the error.",
		Run:       ownerRefused,
	},
	{
		Name:      "LabelRefused",
		Statement: "A label that is longer than 256 bytes, not valid UTF-8, or has control characters is refused with ErrInvalid.",
		Run:       labelRefused,
	},
}

// nastyKeys are ends of keys that some store would confuse with each other.
// Accents are written both composed and decomposed.
var nastyKeys = []string{
	"a", "A", "a ", "a  ", " a", "a/b", "a/", "a//b", "a.b", "a:b", "a\\b", "aa", "ab", "a%", "a_", "a%25", "a*", "a?",
	"a[b]", "{a}", "{a}b", "{b}a", "a{}", "a'b", "a\"b", "a;b", "a--", "a#b", "a&b=c", "a+b", "a,b", "a$b", "..", ".",
	"a/..", "a/../b", "../a", "~a", "-a", "a\u00a0", "\u00e4", "a\u0308", "\u00c4", "ss", "\u00df", "\u0131", "i", "I", "\u0130",
	"\U0001f512", "\U0001f511", "\u65e5\u672c", "\u200b", "\ufeffa", "\ufffd", "0", "00", "1e3", "NULL", "null", "lock-0000000001",
}

// keysPerClient is how many keys a client of independentKeys holds at a time: with some
// backends each of them takes a connection.
const keysPerClient = 16

func independentKeys(e *engine.Env) {
	b := e.Locker()
	keys := make([]string, 0, len(nastyKeys)+2)
	for _, k := range nastyKeys {
		keys = append(keys, e.Key("%s", k))
	}
	full := e.Key("")
	full += strings.Repeat("x", backend.MaxKey-len(full)-1)
	keys = append(keys, full+"a", full+"b", full)
	holds := make([]*engine.Hold, len(keys))
	var a *engine.Client
	for i, key := range keys {
		if i%keysPerClient == 0 {
			a = e.Locker()
		}
		h, err := a.Try(key)
		switch {
		case errors.Is(err, lock.ErrHeld):
			e.Failf("", "the key %s was refused as held (%v), although only other keys are held; the last of them was %s", engine.QuoteKey(key), err, engine.QuoteKey(keys[max(i-1, 0)]))
			return
		case err != nil:
			e.Unexpected(key, err, "the key %s was refused: %s", engine.QuoteKey(key), engine.Outcome(err))
			return
		}
		holds[i] = h
	}
	for _, key := range keys {
		b.MustRefuse(key, "another client holds it")
	}
	for i := 0; i < len(holds); i += 2 {
		holds[i].MustRelease()
	}
	for i, key := range keys {
		if i%2 == 1 {
			b.MustRefuse(key, "only other keys were released")
			continue
		}
		h, err := b.Try(key)
		if err != nil {
			e.Unexpected(key, err, "the key %s was released, but a try returned %s", engine.QuoteKey(key), engine.Outcome(err))
			continue
		}
		h.MustRelease()
	}
	for i := 1; i < len(holds); i += 2 {
		holds[i].MustRelease()
	}
	e.Notef("%d keys", len(keys))
}

func keysAccepted(e *engine.Env) {
	c := e.Locker()
	full := e.Key("")
	keys := []string{full + strings.Repeat("\u20ac", (backend.MaxKey-len(full))/3), full + strings.Repeat("z", backend.MaxKey-len(full))}
	for _, k := range nastyKeys {
		keys = append(keys, e.Key("%s", k))
	}
	for _, key := range keys {
		h, err := c.Try(key)
		if err != nil {
			e.Unexpected(key, err, "the key %s (%d bytes) was refused: %s", engine.QuoteKey(key), len(key), engine.Outcome(err))
			continue
		}
		if h.Lease.Key() != key {
			e.Failf(key, "Lease.Key is %s; expected %s", engine.QuoteKey(h.Lease.Key()), engine.QuoteKey(key))
		}
		h.MustRelease()
	}
	// Keys of one byte are shared by all runs on a store, so somebody may hold it.
	if h, err := c.Try("\u00a7"); err == nil {
		h.MustRelease()
	} else if !errors.Is(err, lock.ErrHeld) {
		e.Unexpected("", err, "a key of one character was refused: %s", engine.Outcome(err))
	}
}

func keysRefused(e *engine.Env) {
	c := e.Locker()
	ok := e.Key("")
	bad := map[string]string{
		"empty":                    "",
		"513 bytes":                ok + strings.Repeat("x", backend.MaxKey+1-len(ok)),
		"64 KiB":                   ok + strings.Repeat("x", 64<<10),
		"invalid UTF-8":            ok + "\xff\xfe",
		"a cut-off character":      ok + "\xe2\x82",
		"a zero byte":              ok + "a\x00b",
		"a line feed":              ok + "a\nb",
		"a carriage return":        ok + "a\r",
		"a tab":                    ok + "\t",
		"DEL":                      ok + "\x7f",
		"a C1 control character":   ok + "\u0085",
		"a surrogate's encoding":   ok + "\xed\xa0\x80",
		"an overlong encoding":     ok + "\xc0\xaf",
		"an escape sequence":       ok + "\x1b[2J",
		"only a control character": "\x01",
	}
	for what, key := range bad {
		for op, get := range map[string]engine.Getter{"TryAcquire": c.Locker.TryAcquire, "Acquire": c.Locker.Acquire} {
			h, err := c.Get(op, get, e.Ctx, key, e.Opts(e.Long))
			if err == nil {
				_ = h.Release(e.Ctx)
				e.Failf(key, "%s of a key with %s was granted; expected ErrInvalid", op, what)
				continue
			}
			e.Is(key, err, op+" of a key with "+what, lock.ErrInvalid)
		}
	}
}

func ownerRefused(e *engine.Env) {
	c := e.Locker()
	key := e.Key("a")
	for what, owner := range map[string]string{
		"that is empty":                "",
		"of 257 bytes":                 strings.Repeat("secret!", 37)[:backend.MaxOwner+1],
		"that is not valid UTF-8":      "secret\xff",
		"that has a control character": "secret\x00",
		"that has a line feed":         "secret\nsecret",
	} {
		h, err := c.Try(key, lock.WithOwner(owner))
		if err == nil {
			_ = h.Release(e.Ctx)
			e.Failf(key, "an owner %s was accepted; expected ErrInvalid", what)
			continue
		}
		if !errors.Is(err, lock.ErrUnsupported) || engine.ClaimReentrancy.Made(e.Settings) {
			e.Is(key, err, "TryAcquire with an owner "+what, lock.ErrInvalid)
		}
		if strings.Contains(err.Error(), "secret") {
			e.Failf(key, "the error shows the owner, which is a secret: %q", err)
		}
	}
}

func labelRefused(e *engine.Env) {
	c := e.Locker()
	key := e.Key("a")
	for what, label := range map[string]string{
		"of 257 bytes":                 strings.Repeat("x", backend.MaxOwner+1),
		"that is not valid UTF-8":      "x\xff",
		"that has a control character": "x\x1b[31m",
	} {
		h, err := c.Try(key, lock.WithLabel(label))
		if err == nil {
			_ = h.Release(e.Ctx)
			e.Failf(key, "a label %s was accepted; expected ErrInvalid", what)
			continue
		}
		e.Is(key, err, "TryAcquire with a label "+what, lock.ErrInvalid)
	}
	c.MustTry(key, lock.WithLabel("a label with every right to be here \U0001f600")).MustRelease()
}
