package zklock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/mortiselock/lock/backend"
)

// TestProofAgainstALeader plays a session through a follower in virtual time, with
// requests at random and the keeper's reads, and cuts the follower off from the leader
// right after a confirmed write. The proof must never outlast what the leader grants.
func TestProofAgainstALeader(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const timeout = 1000 * time.Millisecond
		half := time.Duration(rapid.IntRange(10, 250).Draw(t, "half a tick in ms")) * time.Millisecond
		now := backend.Instant(0)
		p := proof{}
		p.reset(timeout, now)
		touched := now // by the follower, the last time
		leader := now  // what the leader has been told
		pinged := now  // when the follower last answered the leader
		var cut backend.Validity
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			sent := now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "pause in ms")) * time.Millisecond)
			arrived := sent.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "way in ms")) * time.Millisecond)
			for pinged.Add(half) <= arrived {
				pinged = pinged.Add(half)
				if touched <= pinged {
					leader = max(leader, touched)
				}
			}
			touched = arrived
			now = arrived.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "way back in ms")) * time.Millisecond)
			p.touched(sent, now)
			if rapid.Bool().Draw(t, "a write") {
				cut = p.wrote(sent)
				// Cut off here, the leader ends the session no earlier than this.
				if end := leader.Add(timeout); cut.Until() > end {
					t.Fatalf("a write sent at %s proves the session until %s; the leader ends it at %s", time.Duration(sent), time.Duration(cut.Until()), time.Duration(end))
				}
			}
		}
	})
}

func TestProofInSteadyState(t *testing.T) {
	t.Parallel()
	const timeout = 12 * time.Second
	p := proof{}
	p.reset(timeout, 0)
	now := backend.Instant(0)
	for range 100 { // the keeper's reads
		now = now.Add(timeout / 12)
		p.touched(now, now.Add(time.Millisecond))
	}
	v := p.wrote(now)
	assert.Greater(t, v.For, timeout*6/10, "several renewals at a third of the timeout fit")
	assert.LessOrEqual(t, v.For, timeout*2/3)
	assert.Equal(t, v, p.write)
	p.wrote(now.Add(-timeout))
	assert.Equal(t, v, p.write, "an older write proves no more")
}

func TestProofAfterAReconnect(t *testing.T) {
	t.Parallel()
	const timeout = 12 * time.Second
	p := proof{}
	p.reset(timeout, 0)
	p.touched(backend.Instant(time.Second), backend.Instant(time.Second))
	p.reset(timeout, backend.Instant(10*time.Second))
	assert.Zero(t, p.wrote(backend.Instant(9*time.Second)).For, "an answer from the connection before")
	v := p.wrote(backend.Instant(10*time.Second + time.Millisecond))
	assert.Equal(t, 2*timeout/3, v.For, "the handshake passed through the leader")
}
