package redlock

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed grant.lua
var grantText string

//go:embed accept.lua
var acceptText string

//go:embed renew.lua
var renewText string

//go:embed place.lua
var placeText string

//go:embed release.lua
var releaseText string

//go:embed mark.lua
var markText string

var (
	acceptScript  = wire.NewScript(acceptText)
	renewScript   = wire.NewScript(renewText)
	placeScript   = wire.NewScript(placeText)
	releaseScript = wire.NewScript(wire.TellText + releaseText)
	markScript    = wire.NewScript(markText)
)

// grantScriptOf has a text of its own for each prefix and database. A server forgets its
// scripts when it starts, and learns this one after the mark of these keys only: the
// requests of those who have other keys there do not hide a restart from these.
func grantScriptOf(clients []*goredis.Client, prefix string) wire.Script {
	databases := make([]int, len(clients))
	for i, c := range clients {
		databases[i] = c.Options().DB
	}
	return wire.NewScript(fmt.Sprintf("-- databases %v, prefix %s\n%s", databases, prefix, grantText))
}

// memory is for how many milliseconds a node remembers the token that it accepted last
// for a key, from the last grant or renewal on.
func (b *majority) memory(ttl time.Duration) int64 {
	kept := b.tokenMemory
	if kept == 0 {
		kept = max(24*time.Hour, 10*ttl)
	}
	// Others may have had longer leases on the nodes.
	return max(kept, leastTokenMemory(b.longestDelay)).Milliseconds()
}

func (b *majority) record(key string) string   { return b.prefix + "k:" + key }
func (b *majority) accepted(key string) string { return b.prefix + "t:" + key }

// limit is how long the nodes have to answer: usually far less than the TTL.
func (b *majority) limit(ttl time.Duration) time.Duration { return min(b.nodeTimeout, ttl/3) }

// Try asks every node at once and is granted the key by a majority of all nodes.
// A token holds if a majority has accepted it for the acquisition, which a node does
// only while the key is that of the acquisition there, and when the token is larger
// than all that it has accepted before. Two acquisitions share a node, so the later one
// has the larger token, whatever the clocks say. One is proposed with the request for the
// key; where that is not accepted, the nodes are asked again for the largest that they
// said they would accept.
//
// When several ask at the same moment, each may get a few nodes and none a majority.
// The protocol has an answer to that, and it is part of the question: all give up
// what they got, wait for a random time and ask again, so that one of them is the
// first. Otherwise the key would be refused to all while nobody has it.
func (b *majority) Try(ctx context.Context, req backend.Request) (backend.Grant, error) {
	var before error
	for splits := 0; ; splits++ {
		start := b.clock.Now()
		g, split, err := b.try(ctx, req)
		if before != nil && errors.Is(err, backend.ErrNotSent) {
			return g, before
		}
		before = err
		if split == nil || splits == maxSplits {
			return g, err
		}
		took := max(b.clock.Now().Sub(start), time.Millisecond)
		window := min(took<<splits, longestSplit)
		pause := time.NewTimer(rand.N(2 * window))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return g, err
		}
		if split.refusedByAll() {
			held, open := b.heldError(split, req.Key)
			if open {
				held.Remaining = rand.N(min(64*took, longestLeft))
			}
			return g, held
		}
	}
}

const (
	maxSplits    = 8                      // split votes in a row before an acquisition is refused
	longestSplit = 400 * time.Millisecond // for hundreds who begin together
	longestLeft  = 250 * time.Millisecond // who has no vote leaves the key to those who have one: the release of the winner tells
)

// try asks once. It also returns the votes where they were split.
func (b *majority) try(ctx context.Context, req backend.Request) (_ backend.Grant, split *round, _ error) {
	if err := enter(ctx, b.gates.tries, req.Key); err != nil {
		return backend.Grant{}, nil, err
	}
	defer leave(b.gates.tries)
	id := req.ID.Hex()
	// An attempt that failed is cleared away by its number: the acquisition may have
	// asked again before a node has got the release, or the late grant, of the last time.
	attempt := recordHead + id + "|" + strconv.FormatUint(b.attempts.Add(1), 10) + "|"
	record := attempt + strconv.FormatInt(time.Now().UnixMilli(), 10) + "|" + b.holders.Of(req.Holder)
	args := []any{
		"evalsha", b.grant.Hash, 4, b.record(req.Key), b.accepted(req.Key), b.mark, b.floor(),
		record, req.TTL.Milliseconds(), b.longestDelay.Milliseconds(),
	}
	r := b.newRound(req.TTL, (*tally).toAll, b.meansGrant)
	var proposed int64
	if b.tokens {
		proposed = b.proposal(r.sent)
		args = append(args, proposed, b.memory(req.TTL))
	}
	r.after = func(c *call, v vote) {
		if v == no {
			r.lateNo.Add(1)
		}
		if r.verdict != agreed && mayHold(c, v) {
			b.releaseAt(c.index, req.Key, attempt, r.until, r.verdict != refused)
		}
	}
	r.ask(b.grant, args, false)
	v := r.wait(ctx, b.limit(req.TTL))
	if v != agreed {
		b.undo(ctx, r, req, attempt)
		if v != refused || ctx.Err() != nil {
			return backend.Grant{}, nil, b.failure(ctx, r, req.Key)
		}
		held, isSplit := b.heldError(r, req.Key)
		if isSplit {
			split = r
		}
		return backend.Grant{}, split, held
	}
	g := backend.Grant{Holds: 1, Validity: r.validity(req.TTL)}
	if !b.tokens {
		return g, nil, nil
	}
	accepted, next := r.tokens(proposed)
	if accepted {
		g.Token = uint64(proposed)
		return g, nil, nil
	}
	var second *round
	for _, token := range next {
		second, v = b.accept(ctx, r, req, token)
		if v == agreed && b.clock.Now() < g.Until() {
			g.Token = uint64(token)
			return g, nil, nil
		}
		if v != refused {
			break
		}
	}
	b.undo(ctx, r, req, attempt)
	if v == agreed {
		return backend.Grant{}, nil, fmt.Errorf("redlock: key %q: %w: the grant took longer than its TTL and was given back", req.Key, backend.ErrUnavailable)
	}
	// No rival can have refused the token while the key was ours, so that failures
	// of nodes, or a slow grant, are the reason.
	return backend.Grant{}, nil, b.failure(ctx, second, req.Key)
}

// accept asks the nodes that granted the key, and those whose answer is still to come,
// for the token.
func (b *majority) accept(ctx context.Context, r *round, req backend.Request, token int64) (*round, verdict) {
	second := b.newRound(req.TTL, (*tally).toAll, meansAccept)
	second.tally.votes, second.telling = r.toAccept(), true
	second.ask(acceptScript, []any{
		"evalsha", acceptScript.Hash, 2, b.record(req.Key), b.accepted(req.Key),
		req.ID.Hex(), token, b.memory(req.TTL),
	}, false)
	return second, second.wait(ctx, b.limit(req.TTL))
}

func (r *round) validity(ttl time.Duration) backend.Validity {
	return backend.Validity{Sent: r.sent, For: backend.ValidFor(ttl)}
}

// meansGrant reads the answer to a request for the key, and the node's clock.
func (b *majority) meansGrant(c *call) vote {
	if c.err != nil {
		return failed
	}
	clock := &b.nodes[c.index].clocked
	switch v := c.value.(type) {
	case int64:
		if v > 1 {
			clock.learn(v, c.sent)
		}
		if v > 0 {
			return yes
		}
	case string:
		return yes
	case []any:
		switch len(v) {
		case 2:
			return no
		case 3:
			now, _ := v[1].(int64)
			clock.learn(now, c.sent)
			return yes
		}
	}
	return failed
}

// meansAccept reads the answer to a token.
func meansAccept(c *call) vote {
	switch {
	case c.err != nil:
		return failed
	case c.value == int64(1):
		return yes
	case c.value == int64(0), c.value == int64(2):
		return no
	}
	return failed
}

// mayHold reports whether a node may have the key for a request that it answered
// with v.
func mayHold(c *call, v vote) bool { return v == yes || v == failed && mayHaveRun(c) }

// mayHaveRun reports whether a request that failed may have been carried out.
func mayHaveRun(c *call) bool {
	return c.err != nil && !unsent(c.err) && wire.Sentinel(c.err) == nil
}

// toAccept are the votes to begin the second phase with: who refused the key, or
// failed, is not asked for the token.
func (r *round) toAccept() [maxNodes]vote {
	votes := r.tally.votes
	for i, v := range votes {
		if v == yes {
			votes[i] = pending
		}
	}
	return votes
}

// undo releases what an acquisition that failed may have on the nodes. Others are told of
// it unless it was refused: who was refused because of it asks again soon. It waits for
// those that are known to have granted the key, unless ctx has ended. Nodes whose
// answer is still to come are sent the release behind it.
func (b *majority) undo(ctx context.Context, r *round, req backend.Request, attempt string) {
	release := b.newRound(req.TTL, (*tally).everybody, meansRelease)
	some, tells := false, r.verdict != refused
	for i := range b.nodes {
		switch v := r.tally.votes[i]; {
		case v == yes:
			some = true
		case v == pending && r.verdict == agreed, v == failed && mayHaveRun(&r.calls[i]):
			b.releaseAt(i, req.Key, attempt, release.until, tells)
			fallthrough
		default:
			release.tally.votes[i] = failed
		}
	}
	if some {
		release.ask(releaseScript, b.releaseArgs(req.Key, attempt, tells), true)
		release.wait(ctx, b.limit(req.TTL))
	}
}

// releaseAt releases the hold at one node, without waiting.
func (b *majority) releaseAt(node int, key, record string, until backend.Instant, tells bool) {
	c := &call{index: node, script: releaseScript, args: b.releaseArgs(key, record, tells), release: true, until: until}
	b.nodes[node].send(c, b.clock.Now())
}

// releaseArgs are the arguments of the release of a record that begins so. tells: those who
// watch the key are told.
func (b *majority) releaseArgs(key, record string, tells bool) []any {
	args := []any{"evalsha", releaseScript.Hash, 2, b.record(key), b.mark, record}
	if tells {
		args = append(args, "tell")
	}
	return args
}

// Renew extends the hold where it still is, and succeeds when a majority of all
// nodes had it without a break. Then nodes that lack it, and that nobody else has,
// get it back; they count from the next renewal on. A round without a majority
// changes nothing else: the hold goes on until its deadline.
func (b *majority) Renew(ctx context.Context, hold backend.Hold) (backend.Validity, error) {
	if err := enter(ctx, b.gates.renewals, hold.Key); err != nil {
		return backend.Validity{}, err
	}
	defer leave(b.gates.renewals)
	r := b.newRound(hold.TTL, (*tally).gone, meansRenewal)
	r.telling = true
	t := b.topUps.begin(b, r, hold)
	r.after = func(c *call, v vote) {
		if r.verdict == agreed {
			t.place(c, v)
		}
		t.answered()
	}
	r.ask(renewScript, []any{
		"evalsha", renewScript.Hash, 3, b.record(hold.Key), b.mark, b.accepted(hold.Key),
		hold.ID.Hex(), hold.TTL.Milliseconds(), hold.Token, b.memory(hold.TTL),
	}, false)
	v := r.wait(ctx, b.limit(hold.TTL))
	t.placeAll()
	switch v {
	case agreed:
		return r.validity(hold.TTL), nil
	case refused:
		return backend.Validity{}, fmt.Errorf("redlock: key %q: %w: a majority of the nodes does not have it", hold.Key, backend.ErrTakenOver)
	}
	err := b.failure(ctx, r, hold.Key)
	if r.closedClients() > len(b.nodes)-b.quorum {
		err = fmt.Errorf("%w: %w", backend.ErrSessionLost, err) // as renewalError
	}
	return backend.Validity{}, err
}

// closedClients is at how many nodes a request failed because the owner of their
// clients has closed them.
func (r *round) closedClients() int {
	n := 0
	for i, v := range r.tally.votes[:r.tally.nodes] {
		if v == failed && errors.Is(r.calls[i].err, goredis.ErrClosed) {
			n++
		}
	}
	return n
}

// meansRenewal reads the answer to a renewal.
func meansRenewal(c *call) vote {
	if c.err != nil {
		return failed
	}
	switch v := c.value.(type) {
	case string:
		return yes
	case int64:
		if v == 0 || v == 2 {
			return no
		}
	}
	return failed
}

// Release ends the hold on every node. It is confirmed by a majority; nodes that
// don't answer get the release when they answer again.
func (b *majority) Release(ctx context.Context, hold backend.Hold) error {
	_, err := b.ReleaseTelling(ctx, hold)
	return err
}

// ReleaseTelling implements backend.ReleaseTeller: as many were told as listen at the node
// that has the most of those that answered in time.
func (b *majority) ReleaseTelling(ctx context.Context, hold backend.Hold) (others int, err error) {
	if err := enter(ctx, b.gates.others, hold.Key); err != nil {
		return 0, err
	}
	defer leave(b.gates.others)
	var own [maxNodes]bool
	for i, h := range b.hubs {
		own[i] = h.Subscribes(b.record(hold.Key))
	}
	sent := b.topUps.end(hold.ID)
	r := b.newRound(hold.TTL, (*tally).ended, meansRelease)
	r.ask(releaseScript, b.releaseArgs(hold.Key, recordHead+hold.ID.Hex()+"|", true), true)
	sent()
	switch r.wait(ctx, b.limit(hold.TTL)) {
	case agreed:
		return r.told(own), nil
	case refused:
		return 0, notHeld(hold.Key)
	}
	return 0, b.failure(ctx, r, hold.Key)
}

// told is how many other clients the release has told, or less than zero if no node said so.
// own are the nodes at which this client may be counted.
func (r *round) told(own [maxNodes]bool) int {
	others := -1
	for i, v := range r.tally.votes[:r.tally.nodes] {
		if v != yes { // or its answer is still being written
			continue
		}
		n, _ := r.calls[i].value.(int64)
		if n < 2 {
			continue
		}
		n -= 2
		if own[i] {
			n = max(n-1, 0)
		}
		others = max(others, int(n))
	}
	return others
}

// meansRelease reads the answer to a release.
func meansRelease(c *call) vote {
	n, ok := c.value.(int64)
	switch {
	case c.err != nil || !ok:
		return failed
	case c.script.Hash == releaseScript.Hash && n > 0, n == 1:
		return yes
	case n == 0:
		return no
	}
	return failed
}

// recordHead begins every record; 32 digits of the acquisition id follow.
const recordHead = "R1|"

// recordOf takes a record apart.
func recordOf(text string) (id, since, details string, ok bool) {
	rest, ok := strings.CutPrefix(text, recordHead)
	if !ok {
		return "", "", "", false
	}
	id, rest, ok = strings.Cut(rest, "|")
	_, rest, _ = strings.Cut(rest, "|") // the attempt
	since, details, found := strings.Cut(rest, "|")
	return id, since, details, ok && found && len(id) == 32
}

// heldError is the refusal of a request that no majority can grant, with what is
// known of the holder. After a split vote there is none, as far as can be seen, and
// the remaining time is a random one, after which to try again.
func (b *majority) heldError(r *round, key string) (held *backend.HeldError, split bool) {
	var left []time.Duration
	records := map[string]int{}
	held = &backend.HeldError{Key: key}
	most, silent := "", 0
	for i, v := range r.tally.votes[:r.tally.nodes] {
		if v == pending || v == failed {
			silent++
		}
		if v != no {
			continue
		}
		answer := wire.ListOf(r.calls[i].value)
		record := answer.String(0)
		records[record]++
		if records[record] > records[most] {
			most = record
		}
		left = append(left, time.Duration(max(answer.Int(1), 0))*time.Millisecond)
	}
	if records[most] < b.quorum {
		held.Remaining = rand.N(max(8*b.clock.Now().Sub(r.sent), 8*time.Millisecond))
		return held, true
	}
	_, since, details, _ := recordOf(most)
	held.Holder = wire.HolderOf(details, since)
	held.Remaining = b.lasts(left, silent)
	return held, false
}

// lasts is for how long at most a hold keeps others from a majority, unless it is renewed. left
// are the times on the nodes that have told one. A renewal that counts is known to one node of
// each majority, so those that are silent are taken to have the longest time that was told.
func (b *majority) lasts(left []time.Duration, silent int) time.Duration {
	left = append(left, slices.Repeat([]time.Duration{slices.Max(left)}, silent)...)
	slices.Sort(left)
	return left[len(left)-1-(len(b.nodes)-b.quorum)]
}
