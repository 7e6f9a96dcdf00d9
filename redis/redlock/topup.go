package redlock

import (
	"sync"

	"github.com/mortiselock/lock/backend"
)

// topUps are the renewals under way, and what they may still put back. A release
// ends them first, so that nothing is put back behind it.
type topUps struct {
	mu        sync.Mutex
	m         map[backend.ID][]*topUp
	releasing map[backend.ID]int // releases that not every node has been sent yet
}

// topUp puts a hold that a majority has confirmed back on the nodes that lack it.
type topUp struct {
	b    *majority
	r    *round
	hold backend.Hold

	left  int  // answers to come; guarded by the mutex of topUps
	ended bool // the hold is being released; guarded by the mutex of topUps
}

func (t *topUps) begin(b *majority, r *round, hold backend.Hold) *topUp {
	u := &topUp{b: b, r: r, hold: hold}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.releasing[hold.ID] > 0 {
		u.ended = true
		return u
	}
	if t.m == nil {
		t.m = map[backend.ID][]*topUp{}
	}
	t.m[hold.ID] = append(t.m[hold.ID], u)
	return u
}

// end keeps the renewals of the hold from putting anything back, those among them that
// begin before sent is called: a node that has got the release before such a renewal
// says that the key is free, while the others still have the hold.
func (t *topUps) end(id backend.ID) (sent func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range t.m[id] {
		u.ended = true
	}
	delete(t.m, id)
	if t.releasing == nil {
		t.releasing = map[backend.ID]int{}
	}
	t.releasing[id]++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.releasing[id]--; t.releasing[id] == 0 {
			delete(t.releasing, id)
		}
	}
}

// placeAll is called when the renewal is decided.
func (u *topUp) placeAll() {
	u.r.mu.Lock()
	votes := u.r.tally.votes
	u.r.mu.Unlock()
	late := 0
	for i := range u.b.nodes {
		if votes[i] == pending {
			late++
		} else if u.r.verdict == agreed {
			u.place(&u.r.calls[i], votes[i])
		}
	}
	t := &u.b.topUps
	t.mu.Lock()
	defer t.mu.Unlock()
	u.left += late
	u.forget()
}

// answered counts an answer that came after the decision.
func (u *topUp) answered() {
	t := &u.b.topUps
	t.mu.Lock()
	defer t.mu.Unlock()
	u.left--
	u.forget()
}

// forget drops the renewal when every node has answered. The mutex is held.
func (u *topUp) forget() {
	if u.left != 0 || u.ended {
		return
	}
	u.ended = true
	t := &u.b.topUps
	rest := t.m[u.hold.ID][:0]
	for _, other := range t.m[u.hold.ID] {
		if other != u {
			rest = append(rest, other)
		}
	}
	if t.m[u.hold.ID] = rest; len(rest) == 0 {
		delete(t.m, u.hold.ID)
	}
}

// place puts the hold on a node that said that the key is free.
func (u *topUp) place(c *call, v vote) {
	if v != no || c.value != int64(0) {
		return
	}
	b, r := u.b, u.r
	record := u.record()
	now := b.clock.Now()
	t := &b.topUps
	t.mu.Lock()
	defer t.mu.Unlock()
	if record == "" || u.ended || now >= r.sent.Add(backend.ValidFor(u.hold.TTL)) {
		return
	}
	b.nodes[c.index].send(&call{index: c.index, script: placeScript, args: []any{
		"evalsha", placeScript.Hash, 2, b.record(u.hold.Key), b.accepted(u.hold.Key),
		record, u.hold.TTL.Milliseconds(), u.hold.Token, u.hold.ID.Hex(), b.memory(u.hold.TTL),
	}}, now)
}

// record is the record as a node that confirmed the hold has it.
func (u *topUp) record() string {
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	for i, v := range u.r.tally.votes {
		if v == yes {
			text, _ := u.r.calls[i].value.(string)
			return text
		}
	}
	return ""
}
