package redlock

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/redis/internal/wire"
)

//go:embed trust.lua
var trustText string

var trustScript = wire.NewScript(trustText)

// nodeMark is what a node says of its data. The times are the node's own, in
// milliseconds since 1970.
type nodeMark struct {
	text string // as it is stored
	run  string // of the server, "" where unknown

	since  int64 // since when the node's data is complete, 0 for ever
	now    int64
	start  int64 // since when it can be if the node was new when it started
	delay  int64 // the longest restart delay of a Locker
	before int64 // the same, before this one
}

// left is for how much longer the node grants nothing, with the longest restart delay.
func (m nodeMark) left(delay time.Duration) time.Duration {
	if m.since == 0 {
		return 0
	}
	return max(0, time.Duration(m.since-m.now)*time.Millisecond+delay)
}

// written is the mark as it is stored.
func (m nodeMark) written() string { return fmt.Sprintf("N1|%s|%d|%d", m.run, m.since, m.delay) }

// markOf reads the answer of the mark script.
func markOf(v any) (m nodeMark, ok bool) {
	answer := wire.ListOf(v)
	m.run, m.text = answer.String(0), answer.String(1)
	parts := strings.Split(m.text, "|")
	if len(parts) != 4 || parts[0] != "N1" {
		return m, false
	}
	var errs [5]error
	m.since, errs[0] = strconv.ParseInt(parts[2], 10, 64)
	m.delay, errs[1] = strconv.ParseInt(parts[3], 10, 64)
	m.now, errs[2] = strconv.ParseInt(answer.String(2), 10, 64)
	m.start, errs[3] = strconv.ParseInt(answer.String(3), 10, 64)
	m.before, errs[4] = strconv.ParseInt(answer.String(4), 10, 64)
	return m, errors.Join(errs[:]...) == nil
}

// checkMarks has every node that can be reached write down its mark. A node that had
// none may have lost its data, and with it its votes for leases that still run: it
// grants nothing for the restart delay, and the log says so.
//
// Only a set that is new as a whole is spared that: every node can be reached, and
// none has complete data. Then each node's data counts from its start, unless its
// data was flushed since. With opts.NewNodes it is enough that no node that can be
// reached has complete data, and the nodes grant at once.
//
// The marks also tell the longest restart delay that any Locker has had on the nodes:
// what a node has forgotten may be a lease of that length. A node whose data was complete
// before this Locker came with a longer one stays so: there were no longer leases that it
// could have forgotten.
func (b *majority) checkMarks(ctx context.Context, logger *slog.Logger, clients []*goredis.Client, states []nodeState, opts Options) error {
	marks, errs := b.evalAll(ctx, clients, states, func(int) []any { return markCommand(b.mark, b.restartDelay) })
	for i, err := range errs {
		if err != nil && errors.Is(wire.Sentinel(err), backend.ErrPermanent) {
			return fmt.Errorf("redlock: open: node %s: %w", b.nodes[i].name, wire.Describe(ctx, err))
		}
	}
	seen := make([]nodeMark, len(states))
	all, used := true, false
	var before time.Duration // the longest restart delay
	for i, v := range marks {
		var ok bool
		if seen[i], ok = markOf(v); !ok {
			all, seen[i] = false, nodeMark{}
		}
		before = max(before, time.Duration(seen[i].before)*time.Millisecond)
	}
	b.longestDelay = max(b.longestDelay, before)
	complete := make([]bool, len(seen))
	for i, m := range seen {
		complete[i] = m.before > 0 && m.left(before) == 0
		used = used || complete[i]
	}
	b.warnOfShorter(ctx, logger, before)
	b.spreadDelay(ctx, clients, states, seen, complete)
	if !used && (all || opts.NewNodes) {
		b.trust(ctx, clients, states, seen, opts.NewNodes)
	}
	b.warnOfDelay(ctx, logger, seen, used)
	return nil
}

// markCommand writes down a mark where data was lost.
func markCommand(mark string, delay time.Duration) []any {
	return []any{"eval", markScript.Text, 1, mark, delay.Milliseconds()}
}

// warnOfShorter says that Lockers which are open don't know of this one's restart delay.
func (b *majority) warnOfShorter(ctx context.Context, logger *slog.Logger, before time.Duration) {
	if before > 0 && before < b.restartDelay {
		logger.WarnContext(ctx, fmt.Sprintf("redlock: this Locker has a restart delay of %s (restart_delay, or its TTL), and others on these nodes one of %s: those that are open now don't wait longer than that for a node that loses its data; open them again, and set restart_delay=%s in all of them",
			b.restartDelay, before, b.restartDelay))
	}
}

// spreadDelay has the nodes that know of a shorter one write down the longest restart
// delay, and so those that lose their data later. Those with complete data don't wait for
// it.
func (b *majority) spreadDelay(ctx context.Context, clients []*goredis.Client, states []nodeState, seen []nodeMark, complete []bool) {
	longest := b.longestDelay.Milliseconds()
	values, _ := b.evalAll(ctx, clients, states, func(i int) []any {
		waits := complete[i] && seen[i].left(b.longestDelay) > 0
		if seen[i].text == "" || seen[i].delay >= longest && !waits {
			return nil
		}
		since := "-"
		if complete[i] {
			since = strconv.FormatInt(seen[i].since, 10)
		}
		return append(markCommand(b.mark, b.longestDelay), since)
	})
	for i, v := range values {
		if m, ok := markOf(v); ok {
			seen[i] = m
		}
	}
	for _, n := range b.nodes {
		if s, ok := n.server.(redisServer); ok {
			s.delay = b.longestDelay
			n.server = s
		}
	}
}

// trust says of nodes of a new set that they have not forgotten anything. A node that
// has lost its data since it was seen is left alone.
func (b *majority) trust(ctx context.Context, clients []*goredis.Client, states []nodeState, seen []nodeMark, atOnce bool) {
	next := make([]nodeMark, len(seen))
	values, _ := b.evalAll(ctx, clients, states, func(i int) []any {
		m := seen[i]
		switch {
		case m.text == "":
			return nil
		case atOnce:
			m.since = 0
		case m.start < m.since:
			m.since = m.start
		default:
			return nil
		}
		m.text = m.written()
		next[i] = m
		return []any{"eval", trustScript.Text, 1, b.mark, seen[i].text, m.text}
	})
	for i, v := range values {
		if v == int64(1) {
			seen[i] = next[i]
		}
	}
}

// warnOfDelay names the nodes that grant nothing yet, and for how long. used: another
// node has complete data, so that the set is not new.
func (b *majority) warnOfDelay(ctx context.Context, logger *slog.Logger, seen []nodeMark, used bool) {
	var names []string
	var longest time.Duration
	for i, m := range seen {
		if left := m.left(b.longestDelay); left > 0 {
			names = append(names, b.nodes[i].name)
			longest = max(longest, left)
		}
	}
	if len(names) == 0 {
		return
	}
	text := fmt.Sprintf("redlock: these nodes are new, or have lost their data, and grant nothing for up to another %s (restart_delay)", longest.Round(time.Millisecond))
	if !used {
		text += "; if nobody has used any of the nodes yet, new_nodes=true at the first opening spares that"
	}
	logger.WarnContext(ctx, text, "node", strings.Join(names, ", "))
}

// evalAll sends a command of its own to each node that answered before, at the same
// time, and returns the answers. Nodes for which the command is nil are left out.
func (b *majority) evalAll(ctx context.Context, clients []*goredis.Client, states []nodeState, command func(i int) []any) (values []any, errs []error) {
	type answer struct {
		node  int
		value any
		err   error
	}
	values, errs = make([]any, len(clients)), make([]error, len(clients))
	answers := make(chan answer, len(clients))
	asked := 0
	for i, c := range clients {
		if states[i].err != nil {
			continue
		}
		args := command(i)
		if args == nil {
			continue
		}
		asked++
		go func() {
			// The client may not obey the context.
			value, err := wire.Ask(ctx, c, args...)
			answers <- answer{i, value, err}
		}()
	}
	for range asked {
		select {
		case a := <-answers:
			values[a.node], errs[a.node] = a.value, a.err
		case <-ctx.Done():
			return values, errs
		}
	}
	return values, errs
}
