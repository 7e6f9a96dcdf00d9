package rules

import (
	"errors"
	"math/bits"
	"strings"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/conformance/internal/engine"
)

var keyRules = []*engine.Rule{
	{
		Name:      "KeysAccepted",
		Statement: "Keys of 1 to 512 bytes of UTF-8 without control characters are accepted unchanged.",
		Run:       keysAccepted,
	},
	{
		Name:      "KeysRefused",
		Statement: "Any other key is refused with ErrInvalid.",
		Run:       keysRefused,
	},
	{
		Name:      "LongestNames",
		Statement: "A key of 512 bytes, an owner and a label of 256 are kept whole.",
		Run:       longestNames,
	},
	{
		Name:      "OwnerRefused",
		Statement: "An owner that is empty, over 256 bytes, or no text gets ErrInvalid, and is not shown.",
		Run:       ownerRefused,
	},
	{
		Name:      "LabelRefused",
		Statement: "A label that is over 256 bytes or no text gets ErrInvalid.",
		Run:       labelRefused,
	},
}

// nastyKeys are ends of keys that some store would confuse with each other.
// Accents are written both composed and decomposed.
var nastyKeys = []string{
	"a", "A", "a ", "a  ", " a", "a/b", "a/", "a//b", "a.b", "a:b", "a\\b", "aa", "ab", "a%", "a_", "a%25", "a*", "a?",
	"a[b]", "{a}", "{a}b", "{b}a", "a{}", "a'b", "a\"b", "a;b", "a--", "a#b", "a&b=c", "a+b", "a b", "a%2Fb", "a/./b", "a\u200b", "a,b", "a$b", "..", ".",
	"a/..", "a/../b", "../a", "~a", "-a", "a\u00a0", "\u00e4", "a\u0308", "\u00c4", "ss", "\u00df", "\u0131", "i", "I", "\u0130",
	"\U0001f512", "\U0001f511", "\U0001f512a", "\U0001f512b", "\u65e5\u672c", "\u200b", "\ufeffa", "\ufffd", "\uff41", "a\u00adb", "a&amp;b=c", "0", "00", "1e3", "NULL", "null", "lock-0000000001",
	"a\u2028b", "\uffff", "\ue000", "\U0010ffff", "a-1", "a-01", "Aa", "BB", "plumless", "buckeroo",
	"\u304b", "\u30ab", "\u306f", "\u3070", "\u3071",
	"a.", "a,", "a|b", "a@b", "a=b", "a^b", "a!b", "(a)", "<a>", "a`b",
	"a:token", "a:fence", "a:counter", "a:queue", "a:waiters", "a:owner", "a:lock", // what a store may keep beside "a"
}

// keysPerClient is how many keys a client of independentKeys holds at a time: with some
// backends each of them takes a connection.
const keysPerClient = 16

// triedAtOnce is how many keys another client tries at a time.
const triedAtOnce = 4

func independentKeys(e *engine.Env) {
	b := e.Locker()
	keys := make([]string, 0, len(nastyKeys)+2)
	for _, k := range nastyKeys {
		keys = append(keys, e.Key("%s", k))
	}
	full := e.Key("")
	begun := len(full)
	full += strings.Repeat("x", backend.MaxKey-begun-1)
	keys = append(keys, full+"a", full+"b", full)
	for _, at := range []int{begun, (begun + len(full)) / 2} { // a byte that an abbreviation would leave out
		keys = append(keys, full[:at]+"y"+full[at+1:]+"a")
	}
	holders := e.Lockers((len(keys) + keysPerClient - 1) / keysPerClient)
	holds := make([]*engine.Hold, len(keys))
	for i, key := range keys {
		h, err := holders[i/keysPerClient].Try(key)
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
	e.Each(triedAtOnce, func(n int) {
		for i := n; i < len(keys); i += triedAtOnce {
			b.MustRefuse(keys[i], "another client holds it")
			holds[i].MustRelease()
		}
	})
	waitsByWholeKey(e, holders[0], b, [][2]string{{full + "a", full + "b"}, {keys[0], keys[1]}, {e.Key("waited for/"), e.Key("waited for")}})
	waitsByKeyAndOwner(e, holders[0], b)
	waitsForOneOfItsKeys(e, holders[0], b)
	// For any two keys there is a round in which one is held while the other is tried.
	for bit := range bits.Len(uint(len(keys) - 1)) {
		for held := range 2 {
			if halfHeld(e, holders, b, keys, bit, held); e.Failed() {
				return
			}
		}
	}
	e.Notef("%d keys", len(keys))
}

// waitsByWholeKey has a Locker wait for a key that is held, and acquire another one, which is
// free: it must not wait behind its own waiter.
func waitsByWholeKey(e *engine.Env, holder, c *engine.Client, pairs [][2]string) {
	e.Each(len(pairs), func(i int) {
		held, free := pairs[i][0], pairs[i][1]
		h := holder.MustTry(held)
		w := c.Acquiring(held)
		<-w.Begun
		e.Settle()
		other := c.Acquiring(free)
		other.MustGet(e, free, e.WaitBound(), "it is free, and only another key is held, for which a caller of the same Locker waits").MustRelease()
		h.MustRelease()
		w.MustGet(e, held, e.WaitBound(), "its holder has released it").MustRelease()
	})
}

// waitsByKeyAndOwner is waitsByWholeKey for owners, whose names make the same text when they
// are put behind the keys.
func waitsByKeyAndOwner(e *engine.Env, holder, c *engine.Client) {
	if !engine.ClaimReentrancy.Made(e.Settings) {
		return
	}
	owner, key := e.Owner("A"), e.Key("owned")
	held, free := holder.MustTry(key), holder.MustTry(key+"x")
	w := c.Acquiring(key, lock.WithOwner("x"+owner))
	<-w.Begun
	e.Settle()
	other := c.Acquiring(key+"x", lock.WithOwner(owner))
	<-other.Begun
	e.Settle()
	free.MustRelease()
	other.MustGet(e, key+"x", e.WaitBound(), "its holder has released it, and only another key is held, for which another owner waits").MustRelease()
	held.MustRelease()
	w.MustGet(e, key, e.WaitBound(), "its holder has released it").MustRelease()
}

// waitsForOneOfItsKeys is waitsByWholeKey for one owner, who acquires a free key and one that it holds
// while it waits for another one, through the Locker that waits and through another one.
func waitsForOneOfItsKeys(e *engine.Env, holder, c *engine.Client) {
	owner := oneOwner(e)
	if owner == nil {
		return
	}
	elsewhere := e.Key("elsewhere")
	own := c.MustTry(e.Key("its own"), owner...)
	h := holder.MustTry(elsewhere)
	w := c.Acquiring(elsewhere, owner...)
	<-w.Begun
	e.Settle()
	for _, by := range []*engine.Client{c, holder} {
		free := e.Key("free for %s", by.Who)
		by.Acquiring(free, owner...).MustGet(e, free, e.WaitBound(), "it is free, and only another key is held, which its own owner waits for").MustRelease()
	}
	c.Acquiring(own.Key, owner...).MustGet(e, own.Key, e.WaitBound(), "its owner holds it, and waits for another key").MustRelease()
	own.MustRelease()
	h.MustRelease()
	w.MustGet(e, elsewhere, e.WaitBound(), "its holder has released it").MustRelease()
}

// halfHeld has the holders hold the keys whose number has the bit, and b try the rest, whose
// own holders have let them go.
func halfHeld(e *engine.Env, holders []*engine.Client, b *engine.Client, keys []string, bit, held int) {
	holds := make([]*engine.Hold, len(keys))
	var tried []int
	for i := range keys {
		if i>>bit&1 != held {
			tried = append(tried, i)
		}
	}
	e.Each(len(holders), func(n int) {
		for i := n * keysPerClient; i < min((n+1)*keysPerClient, len(keys)); i++ {
			if i>>bit&1 == held {
				holds[i] = holders[n].MustTry(keys[i])
			}
		}
	})
	e.Each(triedAtOnce, func(n int) {
		for j := n; j < len(tried); j += triedAtOnce {
			key := keys[tried[j]]
			w := ways[tried[j]/2%2] // an Acquire must not wait for another key
			h, err := w.get(b, key, e.Long)
			if err != nil {
				e.Unexpected(key, err, "the key %s is free, but %s by another client than the one that holds other keys returned %s", engine.QuoteKey(key), w.name, engine.Outcome(err))
				return
			}
			h.MustRelease()
		}
	})
	if bit == 0 {
		for i, h := range holds {
			if h != nil {
				b.MustRefuse(keys[i], "only other keys were released")
			}
		}
	}
	e.Each(len(holders), func(n int) {
		for _, h := range holds[n*keysPerClient : min((n+1)*keysPerClient, len(keys))] {
			if h != nil {
				h.MustRelease()
			}
		}
	})
}

func keysAccepted(e *engine.Env) {
	c := e.Locker()
	full := e.Key("")
	keys := []string{full + strings.Repeat("\u20ac", (backend.MaxKey-len(full))/3), full + strings.Repeat("z", backend.MaxKey-len(full))}
	for _, k := range nastyKeys {
		keys = append(keys, e.Key("%s", k))
	}
	for i, key := range keys {
		h, err := ways[i%2].get(c, key, e.Long)
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
		"empty":                                 "",
		"513 bytes":                             ok + strings.Repeat("x", backend.MaxKey+1-len(ok)),
		"513 bytes or 514, in fewer characters": ok + strings.Repeat("\u00e4", (backend.MaxKey+2-len(ok))/2),
		"64 KiB":                                ok + strings.Repeat("x", 64<<10),
		"invalid UTF-8":                         ok + "\xff\xfe",
		"a cut-off character":                   ok + "\xe2\x82",
		"a zero byte":                           ok + "a\x00b",
		"a line feed":                           ok + "a\nb",
		"a carriage return":                     ok + "a\r",
		"a tab":                                 ok + "\t",
		"DEL":                                   ok + "\x7f",
		"a C1 control character":                ok + "\u0085",
		"a surrogate's encoding":                ok + "\xed\xa0\x80",
		"an overlong encoding":                  ok + "\xc0\xaf",
		"an escape sequence":                    ok + "\x1b[2J",
		"only a control character":              "\x01",
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
	or := []error{lock.ErrInvalid}
	if !engine.ClaimReentrancy.Made(e.Settings) {
		or = append(or, lock.ErrUnsupported)
	}
	for what, owner := range map[string]string{
		"an owner that is empty":                      "",
		"an owner of 257 bytes":                       strings.Repeat("secret!", 37)[:backend.MaxOwner+1],
		"an owner of 258 bytes, in fewer characters,": "secret" + strings.Repeat("\u00e4", backend.MaxOwner/2-2),
		"an owner that is not valid UTF-8":            "secret\xff",
		"an owner that has a control character":       "secret\x00",
		"an owner that has a line feed":               "secret\nsecret",
	} {
		for op, err := range refuseOption(e, what, lock.WithOwner(owner), or...) {
			if strings.Contains(err.Error(), "secret") {
				e.Failf(e.Key("%s-%s", what, op), "the error shows the owner, which is a secret: %q", err)
			}
		}
	}
}

func labelRefused(e *engine.Env) {
	for what, label := range map[string]string{
		"a label of 257 bytes":                       strings.Repeat("x", backend.MaxOwner+1),
		"a label of 258 bytes, in fewer characters,": strings.Repeat("\u00e4", backend.MaxOwner/2+1),
		"a label that is not valid UTF-8":            "x\xff",
		"a label that has a control character":       "x\x1b[31m",
	} {
		refuseOption(e, what, lock.WithLabel(label), lock.ErrInvalid)
	}
	c := e.Locker()
	if !hasLabels(c) {
		return
	}
	for _, w := range ways[:2] {
		for i, label := range []string{"a label with every right to be here \U0001f600", "\ufffd", ""} {
			w.mustGet(c, e.Key("%s-%d", w.name, i), e.Long, lock.WithLabel(label)).MustRelease()
		}
	}
}
