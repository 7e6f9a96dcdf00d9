package redlock

import (
	"context"
	_ "embed" // the script
	"strconv"
	"strings"

	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed revoke.lua
var revokeText string

var revokeScript = wire.NewScript(revokeText)

// nobody is the acquisition id of a revoked record, in which the token stands for the
// number of the attempt.
var nobody = recordHead + strings.Repeat("0", 32) + "|"

// revokedHead begins the record of a hold that was revoked.
func revokedHead(token string) string { return nobody + token + "|" }

// revokedToken is the token of a revoked hold.
func revokedToken(record string) (token string, revoked bool) {
	rest, revoked := strings.CutPrefix(record, nobody)
	token, _, found := strings.Cut(rest, "|")
	return token, revoked && found
}

// Revoke makes the records with the token those of nobody, each until it runs out on
// its node. It is confirmed when so many nodes have done it that no majority is left
// which could renew the hold. Until then, and after an error, it may have been done on
// some nodes; the hold goes on if a majority is left to it, and Revoke can be called
// again. Nodes that say that they don't have the hold don't count for the
// confirmation: a renewal under way may still put it back there. If they are a
// majority there is no such hold.
func (b majorityWithTokens) Revoke(ctx context.Context, key string, token uint64) error {
	if err := enter(ctx, b.gates.others, key); err != nil {
		return err
	}
	defer leave(b.gates.others)
	r := b.askByToken(ctx, revokeScript, key, token)
	revoked, not := r.tally.count(yes), r.tally.count(no)
	switch enough := len(b.nodes) - b.quorum + 1; {
	case revoked >= enough:
		return nil
	case revoked+not == len(b.nodes), not >= b.quorum:
		return notHeld(key) // no majority has it
	}
	return b.failure(ctx, r, key)
}

// askByToken has every node do something to the hold with the token, and waits for their
// answers.
func (b majorityWithTokens) askByToken(ctx context.Context, script wire.Script, key string, token uint64) *round {
	text := strconv.FormatUint(token, 10)
	r := b.newRound(0, (*tally).everybody, meansRelease)
	r.telling = true
	r.ask(script, []any{
		"evalsha", script.Hash, 3, b.record(key), b.accepted(key), b.mark, text, revokedHead(text),
	}, false)
	r.wait(ctx, b.nodeTimeout)
	return r
}
