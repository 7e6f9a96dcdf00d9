package conformance

import (
	"errors"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
)

var keyRules = []*rule{
	{
		Name:      "KeysAccepted",
		Statement: "Every key of 1 to 512 bytes of valid UTF-8 without control characters is accepted, and the lease names it unchanged.",
		run:       keysAccepted,
	},
	{
		Name:      "KeysRefused",
		Statement: "Any other key is refused with ErrInvalid, by Acquire too.",
		run:       keysRefused,
	},
	{
		Name:      "OwnerRefused",
		Statement: "An owner that is empty, longer than 256 bytes, not valid UTF-8, or has control characters is refused with ErrInvalid, and not shown in the error.",
		run:       ownerRefused,
	},
	{
		Name:      "LabelRefused",
		Statement: "A label that is longer than 256 bytes, not valid UTF-8, or has control characters is refused with ErrInvalid.",
		run:       labelRefused,
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

func independentKeys(e *env) {
	b := e.locker()
	keys := make([]string, 0, len(nastyKeys)+2)
	for _, k := range nastyKeys {
		keys = append(keys, e.key("%s", k))
	}
	full := e.key("")
	full += strings.Repeat("x", backend.MaxKey-len(full)-1)
	keys = append(keys, full+"a", full+"b", full)
	holds := make([]*hold, len(keys))
	var a *client
	for i, key := range keys {
		if i%keysPerClient == 0 {
			a = e.locker()
		}
		h, err := a.try(key)
		switch {
		case errors.Is(err, lock.ErrHeld):
			e.failf("", "the key %s was refused as held (%v), although only other keys are held; the last of them was %s", quoteKey(key), err, quoteKey(keys[max(i-1, 0)]))
			return
		case err != nil:
			e.unexpected(key, err, "the key %s was refused: %s", quoteKey(key), outcome(err))
			return
		}
		holds[i] = h
	}
	for _, key := range keys {
		b.mustRefuse(key, "another client holds it")
	}
	for i := 0; i < len(holds); i += 2 {
		holds[i].mustRelease()
	}
	for i, key := range keys {
		if i%2 == 1 {
			b.mustRefuse(key, "only other keys were released")
			continue
		}
		h, err := b.try(key)
		if err != nil {
			e.unexpected(key, err, "the key %s was released, but a try returned %s", quoteKey(key), outcome(err))
			continue
		}
		h.mustRelease()
	}
	for i := 1; i < len(holds); i += 2 {
		holds[i].mustRelease()
	}
	e.notef("%d keys", len(keys))
}

func keysAccepted(e *env) {
	c := e.locker()
	full := e.key("")
	keys := []string{full + strings.Repeat("\u20ac", (backend.MaxKey-len(full))/3), full + strings.Repeat("z", backend.MaxKey-len(full))}
	for _, k := range nastyKeys {
		keys = append(keys, e.key("%s", k))
	}
	for _, key := range keys {
		h, err := c.try(key)
		if err != nil {
			e.unexpected(key, err, "the key %s (%d bytes) was refused: %s", quoteKey(key), len(key), outcome(err))
			continue
		}
		if h.lease.Key() != key {
			e.failf(key, "Lease.Key is %s; expected %s", quoteKey(h.lease.Key()), quoteKey(key))
		}
		h.mustRelease()
	}
	// Keys of one byte are shared by all runs on a store, so somebody may hold it.
	if h, err := c.try("\u00a7"); err == nil {
		h.mustRelease()
	} else if !errors.Is(err, lock.ErrHeld) {
		e.unexpected("", err, "a key of one character was refused: %s", outcome(err))
	}
}

func keysRefused(e *env) {
	c := e.locker()
	ok := e.key("")
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
		for op, get := range map[string]getter{"TryAcquire": c.l.TryAcquire, "Acquire": c.l.Acquire} {
			h, err := c.get(op, get, e.ctx, key, e.opts(e.long))
			if err == nil {
				_ = h.release(e.ctx)
				e.failf(key, "%s of a key with %s was granted; expected ErrInvalid", op, what)
				continue
			}
			e.is(key, err, op+" of a key with "+what, lock.ErrInvalid)
		}
	}
}

func ownerRefused(e *env) {
	c := e.locker()
	key := e.key("a")
	for what, owner := range map[string]string{
		"that is empty":                "",
		"of 257 bytes":                 strings.Repeat("secret!", 37)[:backend.MaxOwner+1],
		"that is not valid UTF-8":      "secret\xff",
		"that has a control character": "secret\x00",
		"that has a line feed":         "secret\nsecret",
	} {
		h, err := c.try(key, lock.WithOwner(owner))
		if err == nil {
			_ = h.release(e.ctx)
			e.failf(key, "an owner %s was accepted; expected ErrInvalid", what)
			continue
		}
		if !errors.Is(err, lock.ErrUnsupported) || claimReentrancy.made(e.settings) {
			e.is(key, err, "TryAcquire with an owner "+what, lock.ErrInvalid)
		}
		if strings.Contains(err.Error(), "secret") {
			e.failf(key, "the error shows the owner, which is a secret: %q", err)
		}
	}
}

func labelRefused(e *env) {
	c := e.locker()
	key := e.key("a")
	for what, label := range map[string]string{
		"of 257 bytes":                 strings.Repeat("x", backend.MaxOwner+1),
		"that is not valid UTF-8":      "x\xff",
		"that has a control character": "x\x1b[31m",
	} {
		h, err := c.try(key, lock.WithLabel(label))
		if err == nil {
			_ = h.release(e.ctx)
			e.failf(key, "a label %s was accepted; expected ErrInvalid", what)
			continue
		}
		e.is(key, err, "TryAcquire with a label "+what, lock.ErrInvalid)
	}
	c.mustTry(key, lock.WithLabel("a label with every right to be here \U0001f600")).mustRelease()
}
