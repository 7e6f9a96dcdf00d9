package zklock

import (
	"time"

	"github.com/mortiselock/lock/backend"
)

// How long does a confirmed write prove that the session lives on?
//
// The leader ends a session when it has heard nothing of it for the timeout T. A
// write that a quorum confirmed shows that the session existed then, but the leader
// does not count it as a sign of life: a follower reports the sessions that it has
// heard of in its answers to the leader's pings, which come every half tick
// (LearnerHandler.java, Leader.java, LearnerSessionTracker.java). When the follower
// forwarded a write that was sent at s, it had answered such a ping at s - tick/2 or
// later. So whatever it had heard of the session by s - tick/2 the leader knows, and
// the session lasts at least T after that. A tick is at most T/2, so a request whose
// answer was here by s - T/4 counts from the instant at which it was sent. The
// handshake counts too, at once: a new session, and the move of one to another
// server, pass through the leader.
//
// The keeper sends a read whenever nothing else was sent for T/12. A write is thus
// good for about T - T/4 - T/12 = 2T/3.

// touch is a request that was answered.
type touch struct{ sent, answered backend.Instant }

// proof is what is known of the life of a session. It is guarded by the session's
// mutex.
type proof struct {
	timeout time.Duration
	base    backend.Instant // when the handshake of the connection was sent
	touches []touch         // on this connection, oldest first
	last    backend.Instant // when the last request that was answered was sent
	write   backend.Validity
}

// maxTouches at T/48 apart reach back for two thirds of the timeout.
const maxTouches = 32

// reset begins a new connection.
func (p *proof) reset(timeout time.Duration, sent backend.Instant) {
	p.timeout, p.base, p.last = timeout, sent, sent
	p.touches = p.touches[:0]
}

// touched records a request that was answered.
func (p *proof) touched(sent, answered backend.Instant) {
	if sent < p.base {
		return // on an earlier connection, through a server that may not have reported it
	}
	p.last = max(p.last, sent)
	if n := len(p.touches); n > 0 && sent.Sub(p.touches[n-1].sent) < p.timeout/48 {
		return
	}
	if len(p.touches) == maxTouches {
		p.touches = append(p.touches[:0], p.touches[1:]...)
	}
	p.touches = append(p.touches, touch{sent, answered})
}

// wrote records a confirmed write and returns how long it proves that the session
// lives.
func (p *proof) wrote(sent backend.Instant) backend.Validity {
	known := p.base
	if sent < p.base {
		known = sent.Add(-p.timeout) // proves nothing
	}
	for _, t := range p.touches {
		if t.answered <= sent.Add(-p.timeout/4) {
			known = max(known, t.sent)
		}
	}
	until := known.Add(backend.ValidFor(p.timeout))
	v := backend.Validity{Sent: sent, For: max(min(2*p.timeout/3, until.Sub(sent)), 0)}
	if p.write.Until() <= v.Until() {
		p.write = v
	}
	return v
}
