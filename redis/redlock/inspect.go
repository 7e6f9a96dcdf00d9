package redlock

import (
	"context"
	_ "embed" // the scripts
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed inspect.lua
var inspectText string

//go:embed force.lua
var forceText string

var (
	inspectScript = wire.NewScript(inspectText)
	forceScript   = wire.NewScript(forceText)
)

// meansShow reads the answer of a node that is asked who has the key.
func meansShow(c *call) vote {
	if c.err != nil {
		return failed
	}
	if answer, ok := c.value.([]any); ok && len(answer) == 3 {
		return yes
	}
	if c.value == int64(0) {
		return no
	}
	return failed
}

// candidate is an acquisition that has the key on some nodes.
type candidate struct {
	id, token string
	record    string // the one with the earliest since
	since     string
	left      []time.Duration // on each of them
}

// Inspect shows the hold that a majority of the nodes has. Redis does not know who
// waits, so Waiters is -1.
func (b *majority) Inspect(ctx context.Context, key string) (backend.Record, error) {
	if err := enter(ctx, b.gates.others, key); err != nil {
		return backend.Record{}, err
	}
	defer leave(b.gates.others)
	r := b.newRound(0, (*tally).everybody, meansShow)
	r.telling = true
	r.ask(inspectScript, []any{"evalsha", inspectScript.Hash, 2, b.record(key), b.accepted(key)}, false)
	r.wait(ctx, b.nodeTimeout)
	var all []candidate
	most, unseen := 0, 0
	for i, v := range r.tally.votes[:r.tally.nodes] {
		switch v {
		case pending, failed:
			unseen++
		case yes:
			c, ok := b.candidateOf(wire.ListOf(r.calls[i].value))
			if !ok {
				continue // an acquisition that is under way
			}
			at := slices.IndexFunc(all, func(o candidate) bool { return o.id == c.id && o.token == c.token })
			if at < 0 {
				at = len(all)
				all = append(all, candidate{id: c.id, token: c.token, record: c.record})
			}
			if _, since, _, _ := recordOf(c.record); since < all[at].since || all[at].since == "" {
				// A node that has it by a repeat of the request knows a later time.
				all[at].record, all[at].since = c.record, since
			}
			all[at].left = append(all[at].left, c.left...)
			most = max(most, len(all[at].left))
		}
	}
	for _, c := range all {
		if len(c.left) < b.quorum {
			continue
		}
		_, since, details, _ := recordOf(c.record)
		token, _ := strconv.ParseUint(c.token, 10, 64)
		_, revoked := revokedToken(c.record)
		return backend.Record{
			Key: key, Token: token, Holds: 1, Waiters: -1,
			Remaining: b.lasts(c.left, unseen),
			Holder:    wire.HolderOf(details, since),
			Revoked:   revoked,
		}, nil
	}
	if most+unseen >= b.quorum {
		return backend.Record{}, b.failure(ctx, r, key)
	}
	return backend.Record{}, notHeld(key)
}

// candidateOf reads the answer of one node. With tokens, an acquisition counts when
// the node has accepted its token.
func (b *majority) candidateOf(answer wire.List) (candidate, bool) {
	record := answer.String(0)
	id, _, _, ok := recordOf(record)
	c := candidate{id: id, record: record, left: []time.Duration{time.Duration(max(answer.Int(1), 0)) * time.Millisecond}}
	if revoked, ok := revokedToken(record); ok {
		c.token = revoked
		return c, true
	}
	if b.tokens {
		var of string
		c.token, of, _ = strings.Cut(answer.String(2), "|")
		ok = ok && of == id
	}
	return c, ok
}

// ForceRelease removes the record from every node where it has the token. It revokes the
// hold first: while one node is slow, renewals would put it back on those that have removed it.
func (b majorityWithTokens) ForceRelease(ctx context.Context, key string, token uint64) error {
	if err := enter(ctx, b.gates.others, key); err != nil {
		return err
	}
	defer leave(b.gates.others)
	b.askByToken(ctx, revokeScript, key, token)
	r := b.askByToken(ctx, forceScript, key, token)
	removed, not := r.tally.count(yes), r.tally.count(no)
	switch {
	case removed+not < b.quorum, len(b.nodes)-removed-not >= b.quorum:
		return b.failure(ctx, r, key)
	case removed > 0:
		return nil
	case not > len(b.nodes)-b.quorum:
		return notHeld(key)
	}
	return b.failure(ctx, r, key)
}
