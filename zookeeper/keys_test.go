package zklock

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
)

// named32 is a node as the server names it.
func named32(seq int32) string { return nodeName(backend.NewID()) + fmt.Sprintf("%010d", seq) }

// The server numbers children with a signed counter of 32 bits: after 2147483647 come
// -2147483648 and so on. The order must be that of creation all the same.
func TestOrderOverTheWrapAround(t *testing.T) {
	t.Parallel()
	for _, start := range []int32{0, 7, math.MaxInt32 - 5, math.MaxInt32, math.MinInt32, -3} {
		var names []string
		for i := range int32(10) {
			names = append(names, named32(start+i))
		}
		mixed := append([]string{"README", "lock-0000000000"}, names...)
		rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		p, n := first(mixed)
		assert.Equal(t, 10, n)
		assert.Equal(t, names[0], p.name, "start %d", start)
		for i, name := range names {
			a, found := aheadOf(mixed, name)
			require.True(t, found)
			require.Equal(t, i, a.n)
			if i > 0 {
				require.Equal(t, names[i-1], a.last.name, "start %d, place %d", start, i)
			}
			if i > 1 {
				require.Equal(t, names[i-2], a.second.name, "start %d, place %d", start, i)
			}
		}
	}
}

func TestPredecessorNeedsTheNodeItself(t *testing.T) {
	t.Parallel()
	_, found := aheadOf([]string{named32(4), named32(6)}, named32(5))
	assert.False(t, found)
	_, found = aheadOf([]string{"README"}, "README")
	assert.False(t, found, "not a node of ours")
}

func TestNamesOfOthersAreNoPlaces(t *testing.T) {
	t.Parallel()
	own := named32(12)
	for _, name := range []string{
		"", "m1-", "README", own[:len(own)-10], own[:len(own)-1], own + "x", own[:len(own)-10] + "--000000001x", strings.ToUpper(own),
		"m2" + own[2:], "_c_0123456789abcdef0123456789abcdef-lock-0000000001", nodeName(backend.NewID()) + "99999999999", nodeName(backend.NewID()) + "- 00000001",
	} {
		_, ok := sequenceOf(name)
		assert.False(t, ok, "%q", name)
	}
	seq, ok := sequenceOf(named32(math.MinInt32))
	assert.True(t, ok)
	assert.Equal(t, int32(math.MinInt32), seq)
}

func TestNodeNameHidesTheID(t *testing.T) {
	t.Parallel()
	id := backend.NewID()
	assert.NotContains(t, nodeName(id), id.Hex())
	found, ok := named([]string{named32(1), nodeName(id) + "0000000002"}, nodeName(id))
	assert.True(t, ok)
	assert.Equal(t, nodeName(id)+"0000000002", found)
}

func FuzzKeys(f *testing.F) {
	for _, key := range []string{"a", "a/b", ".", "..", ".a", "a..", "%", "%41", "A", "ä", "a b", "/", "zookeeper", "🔒"} {
		f.Add(key, "a")
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		if backend.ValidateKey(one) != nil || backend.ValidateKey(two) != nil {
			return
		}
		e1, e2 := encodeKey(one), encodeKey(two)
		if one != two && e1 == e2 {
			t.Fatalf("%q and %q are both %q", one, two, e1)
		}
		if strings.Contains(e1, "/") || e1 == "." || e1 == ".." || !validPath("/"+e1) {
			t.Fatalf("%q becomes %q, which is no path element", one, e1)
		}
		if key, ok := decodeKey(e1); !ok || key != one {
			t.Fatalf("%q becomes %q and then %q", one, e1, key)
		}
	})
}
