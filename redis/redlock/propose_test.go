package redlock

import (
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/backendtest"
	"github.com/mortiselock/lock/redis/internal/redistest"
)

// inOneRound acquires keys until an acquisition needs one round trip: on a busy machine
// a request may be on the way for so long that its token is behind the nodes' clock.
func inOneRound(t *testing.T, d *double) (backend.Hold, backend.Grant) {
	t.Helper()
	for i := range 200 {
		before := d.sent(acceptScript)
		hold, g := backendtest.Granted(t, d, redistest.Request(fmt.Sprintf("one round/%d", i)))
		if d.sent(acceptScript) == before {
			return hold, g
		}
		require.NoError(t, d.Release(t.Context(), hold))
	}
	t.Fatal("every acquisition took two round trips")
	return backend.Hold{}, backend.Grant{}
}

func nodeTime(t *testing.T, c *goredis.Client) int64 {
	t.Helper()
	now, err := c.Time(t.Context()).Result()
	require.NoError(t, err)
	return now.UnixMicro()
}

// accept writes down on the nodes that somebody else had a token accepted.
func (d *double) accept(t *testing.T, key string, token int64, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		require.NoError(t, d.clients[i].Set(t.Context(), d.accepted(key), fmt.Sprintf("%d|%s", token, backend.NewID().Hex()), time.Hour).Err())
	}
}

// TestOneRoundTrip: once the nodes' clocks are known, an acquisition with a token
// is one request to each node, and its token is near their clock.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 5), Options{})
	before := nodeTime(t, d.clients[0])
	hold, g := inOneRound(t, d)
	require.GreaterOrEqual(t, int64(g.Token), before)
	require.LessOrEqual(t, int64(g.Token), nodeTime(t, d.clients[0])+50_000)
	accepted := 0
	for _, c := range d.clients {
		// A node that was asked so late that the token was behind its clock has none.
		if v := c.Get(t.Context(), d.accepted(hold.Key)).Val(); v != "" {
			require.Equal(t, fmt.Sprintf("%d|%s", g.Token, hold.ID.Hex()), v)
			accepted++
		}
	}
	require.GreaterOrEqual(t, accepted, d.quorum)
	rec, err := d.Inspect(t.Context(), hold.Key)
	require.NoError(t, err)
	require.Equal(t, g.Token, rec.Token)
	_, err = d.Renew(t.Context(), hold)
	require.NoError(t, err)
	require.NoError(t, d.Release(t.Context(), hold))
}

// TestProposalRefused: a token that is not larger than those before, or not near
// the nodes' clock, is not accepted with the request, and the second round finds one.
func TestProposalRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(t *testing.T, d *double)
		next int64 // the token, 0: the nodes' clock
	}{
		"a majority has accepted a larger one": {
			set:  func(t *testing.T, d *double) { d.accept(t, "k", 3_000_000_000_000_000, 0, 1, 2) },
			next: 3_000_000_000_000_001,
		},
		"one has accepted a larger one": {
			set: func(t *testing.T, d *double) {
				d.accept(t, "k", 3_000_000_000_000_000, 0)
				d.nodes[1].down() // so that it is one of the majority
				d.nodes[2].down()
			},
			next: 3_000_000_000_000_001,
		},
		"nothing is known of the clocks":   {set: func(_ *testing.T, d *double) { d.setClocks(func(int64) int64 { return 0 }) }},
		"the clocks seem to be far ahead":  {set: func(_ *testing.T, d *double) { d.setClocks(func(o int64) int64 { return o + 3_600_000_000 }) }},
		"the clocks seem to be far behind": {set: func(_ *testing.T, d *double) { d.setClocks(func(o int64) int64 { return o - 3_600_000_000 }) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := doubleOn(t, doubleClients(t, 5), Options{})
			hold, _ := inOneRound(t, d)
			require.NoError(t, d.Release(t.Context(), hold))
			c.set(t, d)
			before, asked := nodeTime(t, d.clients[0]), d.sent(acceptScript)
			hold, g := backendtest.Granted(t, d, redistest.Request("k"))
			require.Greater(t, d.sent(acceptScript), asked)
			if c.next != 0 {
				require.EqualValues(t, c.next, g.Token)
			} else {
				require.GreaterOrEqual(t, int64(g.Token), before)
				require.LessOrEqual(t, int64(g.Token), nodeTime(t, d.clients[0])+50_000)
			}
			require.NoError(t, d.Release(t.Context(), hold))
			for _, node := range d.nodes {
				node.up()
			}
			inOneRound(t, d) // the clocks are known again
			_, later := backendtest.Granted(t, d, redistest.Request("k"))
			require.Greater(t, later.Token, g.Token)
		})
	}
}

// setClocks changes what is known of the nodes' clocks.
func (d *double) setClocks(f func(offset int64) int64) {
	for _, n := range d.majority.nodes {
		n.clocked.offset.Store(f(n.clocked.offset.Load()))
	}
	d.proposed.Store(0)
}

// TestProposalOfAClockThatIsWrong: one node whose clock is wrong does not keep the
// others from accepting a token with the request.
func TestProposalOfAClockThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, wrong := range []int64{-3_600_000_000, 3_600_000_000} {
		d := doubleOn(t, doubleClients(t, 5), Options{})
		d.setClocks(func(int64) int64 { return 1_000_000_000 })
		now := backend.SystemClock().Now()
		right := d.proposal(now)
		d.majority.nodes[3].clocked.offset.Add(wrong)
		require.Equal(t, right+1, d.proposal(now))
		d.majority.nodes[1].clocked.offset.Add(wrong)
		require.Equal(t, right+2, d.proposal(now))
		d.majority.nodes[2].clocked.offset.Add(-wrong)
		require.Zero(t, d.proposal(now), "no majority agrees")
	}
}

// TestProposalsRise: requests at the same moment propose different tokens.
func TestProposalsRise(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	d.setClocks(func(int64) int64 { return 1_000_000_000 })
	now := backend.SystemClock().Now()
	first := d.proposal(now)
	require.Equal(t, first+1, d.proposal(now))
	require.Equal(t, first+2, d.proposal(now.Add(-10*time.Millisecond)))
	require.Equal(t, first+10_000, d.proposal(now.Add(10*time.Millisecond)))
}

// TestAsksAgain: an acquisition that arrives twice has the same token, also when
// nodes that did not have the first request have accepted another one with the second.
func TestAsksAgain(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 5), Options{})
	hold, _ := inOneRound(t, d)
	require.NoError(t, d.Release(t.Context(), hold))
	d.nodes[0].down()
	d.nodes[1].down()
	req := redistest.Request("k")
	_, first := backendtest.Granted(t, d, req)
	d.nodes[0].up()
	d.nodes[1].up()
	backendtest.Eventually(t, "the nodes that were down are asked again", func() bool {
		_, again := backendtest.Granted(t, d, req)
		require.Equal(t, first.Token, again.Token)
		return d.count(t, "k") == 5
	})
}

// TestKeepsTheTokenOfTheMajority: a question that was repeated and reached a few
// nodes only has left a larger token there. The next answer is still the first token.
func TestKeepsTheTokenOfTheMajority(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 5), Options{})
	hold, _ := inOneRound(t, d)
	require.NoError(t, d.Release(t.Context(), hold))
	d.nodes[0].down()
	req := redistest.Request("k")
	_, first := backendtest.Granted(t, d, req)
	backendtest.Eventually(t, "all that are up have answered", func() bool { return d.count(t, "k") == 4 })
	require.NoError(t, d.clients[0].Set(t.Context(), d.record("k"), recordHead+req.ID.Hex()+"|99|1760000000000|{}", time.Minute).Err())
	require.NoError(t, d.clients[0].Set(t.Context(), d.accepted("k"), fmt.Sprintf("%d|%s", first.Token+1000, req.ID.Hex()), time.Minute).Err())
	d.nodes[0].up()
	for _, slow := range []int{1, 2} { // so that the first three answers have that of node 0
		goOn := d.nodes[slow].stall()
		time.AfterFunc(200*time.Millisecond, goOn)
	}
	_, again := backendtest.Granted(t, d, req)
	require.Equal(t, first.Token, again.Token)
}

// TestAsksAgainAfterAFailure: what a minority remembers of an attempt that failed
// does not keep the next one from a token that all accept.
func TestAsksAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	d := doubleOn(t, doubleClients(t, 3), Options{})
	req := redistest.Request("k")
	token := nodeTime(t, d.clients[0])
	require.NoError(t, d.clients[0].Set(t.Context(), d.record("k"), recordHead+req.ID.Hex()+"|1|1760000000000|{}", time.Minute).Err())
	require.NoError(t, d.clients[0].Set(t.Context(), d.accepted("k"), fmt.Sprintf("%d|%s", token, req.ID.Hex()), time.Minute).Err())
	d.accept(t, "k", token+20_000_000, 1) // and somebody else had a larger one since
	d.nodes[2].down()
	g, err := d.Try(t.Context(), req)
	require.NoError(t, err)
	require.Greater(t, int64(g.Token), token+20_000_000)
}
