package redislock

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

var bucketName = regexp.MustCompile(`^\{m:[0-9a-f]{2}\}:$`)

// FuzzNames: two keys have two records, no record is a counter, what belongs to a
// key is in one hash slot, and the key can be read from the name.
func FuzzNames(f *testing.F) {
	keys := []string{
		"a", "A", "a ", " a", "a/b", "a/", "a:b", "t", "k:", "k:a", "{a}", "{a}b", "}", "{", "{m:00}:t", "{m:00}:k:a", "\u00e4", "a\u0308", "..", "a/..",
		"\U0001f512", "\ufffd", "\u200b", "NULL", "lock:", "a*", "a?", "a[b]", "%", strings.Repeat("x", 512),
	}
	for i, a := range keys {
		f.Add(defaultPrefix, a, keys[(i+1)%len(keys)])
		f.Add("", a, a+"t")
		f.Add("{tag}", a, a)
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		if backend.ValidateKey(a) != nil || backend.ValidateKey(b) != nil || len(prefix) > wire.MaxPrefix || emptyTag(prefix) {
			return
		}
		x, y := namesOf(prefix, a), namesOf(prefix, b)
		assert.Equal(t, a == b, x.record() == y.record(), "%q and %q", x.record(), y.record())
		assert.NotEqual(t, x.record(), y.counter(), "a record and a counter")
		rest, ok := strings.CutPrefix(x.bucket, prefix)
		assert.True(t, ok && bucketName.MatchString(rest), "%q", x.bucket)
		key, ok := strings.CutPrefix(x.record(), x.bucket+"k:")
		assert.True(t, ok && key == a, "the key is in the name, %q", x.record())
		assert.Equal(t, hashedPart(x.record()), hashedPart(x.counter()), "one hash slot")
		assert.NotEmpty(t, hashedPart(x.counter()))
	})
}

// hashedPart is the part of a name that decides about its slot in a Cluster: what is
// between the first brace and the next closing one, if that is not empty.
func hashedPart(name string) string {
	if _, rest, ok := strings.Cut(name, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return name
}
