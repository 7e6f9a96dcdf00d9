package servertest

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine stands for the ports of a machine: those on which somebody listens.
type machine map[int]bool

type listening func()

func (l listening) Close() error { l(); return nil }

func (m machine) listen(port int) (io.Closer, error) {
	if m[port] {
		return nil, fmt.Errorf("port %d is taken", port)
	}
	m[port] = true
	return listening(func() { delete(m, port) }), nil
}

// The first of these processes has used up its blocks, so that it goes round; the port
// of a server that is down is still not given to another.
func TestPortsAreOfOneProcess(t *testing.T) {
	t.Parallel()
	const low, high, block, most = 18000, 18120, 10, 4
	m, owner := machine{}, map[int]int{}
	var shares []*portShare
	for i := range 3 {
		p := &portShare{low: low, high: high, block: block, most: most, listen: m.listen}
		shares = append(shares, p)
		for range 3 * most * block {
			port, err := p.take()
			require.NoError(t, err)
			require.GreaterOrEqual(t, port, low)
			require.Less(t, port, high)
			if was, ok := owner[port]; ok {
				require.Equal(t, was, i, "port %d was given to two", port)
			}
			owner[port] = i
		}
	}
	fourth := &portShare{low: low, high: high, block: block, most: most, listen: m.listen}
	_, err := fourth.take()
	require.ErrorContains(t, err, "no free block of ports")

	require.NoError(t, shares[0].close())
	port, err := fourth.take()
	require.NoError(t, err)
	require.Equal(t, 0, owner[port], "the block of a process that has ended")
}

// All ports of a process's blocks are used before one of them is used again, and one
// on which somebody listens is left out.
func TestPortsComeRoundLate(t *testing.T) {
	t.Parallel()
	m := machine{}
	p := &portShare{low: 18200, high: 18300, block: 10, most: 2, listen: m.listen}
	seen := map[int]bool{}
	first, err := p.take()
	require.NoError(t, err)
	seen[first] = true
	for range 2*9 - 1 {
		port, err := p.take()
		require.NoError(t, err)
		require.False(t, seen[port])
		seen[port] = true
	}
	m[first] = true
	again, err := p.take()
	require.NoError(t, err)
	require.True(t, seen[again])
	require.NotEqual(t, first, again)
}
