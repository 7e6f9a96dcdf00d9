package redlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/construct"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// nodeState is what a node says when the backend is opened.
type nodeState struct {
	info  map[string]string
	fsync string // appendfsync, or "" where CONFIG is refused
	mute  bool   // the user may not publish
	err   error
}

// checkNodes asks all nodes at the same time, refuses what cannot work, and warns of
// what may lose locks.
func (b *majority) checkNodes(ctx context.Context, clients []*goredis.Client, opts Options) error {
	logger := construct.Logger(opts.Lock.Logger)
	for i, n := range b.nodes {
		for _, other := range b.nodes[:i] {
			if n.name == other.name {
				return fmt.Errorf("redlock: open: %w: %s is given twice; each node must be a server of its own", backend.ErrInvalid, n.name)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	patient := make([]*goredis.Client, len(clients))
	for i, c := range clients {
		patient[i] = c.WithTimeout(openTimeout)
	}
	states := b.askAll(ctx, patient)

	var missing []string
	cause := backend.ErrPermanent // of an error for too few nodes
	for i, s := range states {
		name := b.nodes[i].name
		switch {
		case failure.BadCertificate(s.err): // it may have run out, and the others go on
		case errors.Is(s.err, backend.ErrPermanent), errors.Is(s.err, backend.ErrInvalid):
			return fmt.Errorf("redlock: open: node %s: %w", name, s.err)
		case s.err != nil:
			cause = backend.ErrUnavailable
		}
		if s.err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", name, s.err))
			logger.WarnContext(ctx, "redlock: a node can't be reached; it counts as failed", "node", name, "error", s.err)
			continue
		}
		if run := s.info["run_id"]; run != "" {
			for j := range i {
				if states[j].info["run_id"] == run {
					return fmt.Errorf("redlock: open: %w: %s and %s are the same server; each node must be a server of its own", backend.ErrInvalid, b.nodes[j].name, name)
				}
			}
		}
	}
	if live := len(states) - len(missing); live < b.quorum {
		return fmt.Errorf("redlock: open: %w: %d of %d nodes can be reached, and %d are needed: %s",
			cause, live, len(states), b.quorum, strings.Join(missing, "; "))
	}
	if len(states)%2 == 0 {
		logger.WarnContext(ctx, "redlock: an even number of nodes tolerates no more failures than one node less; use an odd number", "nodes", len(states))
	}
	b.compareRuns(states)
	appendOnly := len(missing) == 0
	for _, s := range states {
		appendOnly = appendOnly && s.info["aof_enabled"] == "1"
	}
	b.guarantees = guarantees(len(states), b.tokens, b.restartDelay, b.tokenMemory, appendOnly)
	if err := b.checkMarks(ctx, logger, patient, states, opts); err != nil {
		return err
	}
	b.warnOf(ctx, logger, states)
	return nil
}

// askAll asks every node, each on a goroutine of its own since its client may not obey
// the context. When a majority has answered, the others have a second left.
func (b *majority) askAll(ctx context.Context, clients []*goredis.Client) []nodeState {
	type answer struct {
		node  int
		state nodeState
	}
	answers := make(chan answer, len(clients))
	states := make([]nodeState, len(clients))
	for i, c := range clients {
		states[i].err = fmt.Errorf("%w: no answer", backend.ErrUnavailable)
		go func() { answers <- answer{i, b.stateOf(ctx, c)} }()
	}
	var enough <-chan time.Time
	reached := 0
	for range clients {
		select {
		case a := <-answers:
			states[a.node] = a.state
			if a.state.err == nil {
				reached++
			}
		case <-enough:
			return states
		case <-ctx.Done():
			return states
		}
		if reached == b.quorum && enough == nil {
			enough = time.After(openGrace)
		}
	}
	return states
}

// stateOf asks one node.
func (b *majority) stateOf(ctx context.Context, c *goredis.Client) (s nodeState) {
	fail := func(err error) nodeState {
		hint := wire.HintAboutTLS(err, c.Options().TLSConfig != nil, "connect with it (tls=true, or the TLSConfig of the client)", "connect without it (no tls=true, no TLSConfig)")
		err = wire.Describe(ctx, err)
		if !errors.Is(err, backend.ErrPermanent) && !errors.Is(err, backend.ErrUnavailable) {
			err = fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
		return nodeState{err: fmt.Errorf("%w%s", err, hint)}
	}
	if _, err := wire.Ask(ctx, c, "ping"); err != nil {
		return fail(err)
	}
	info, err := wire.Ask(ctx, c, "info")
	if err != nil && !wire.NotAllowed(err) {
		return fail(err)
	}
	if text, ok := info.(string); ok {
		s.info = wire.InfoFields(text)
	}
	switch {
	case s.info["role"] == "slave":
		return nodeState{err: fmt.Errorf("%w: it is a replica; Redlock needs independent servers that are written to", backend.ErrPermanent)}
	case s.info["cluster_enabled"] == "1":
		return nodeState{err: fmt.Errorf("%w: it is a member of a Redis Cluster; Redlock needs independent servers", backend.ErrPermanent)}
	case s.info["loading"] == "1":
		return nodeState{err: fmt.Errorf("%w: it is loading its data", backend.ErrUnavailable)}
	}
	if s.info["aof_enabled"] == "1" {
		if config, err := wire.Ask(ctx, c, "config", "get", "appendfsync"); err == nil {
			s.fsync = wire.ListOf(config).String(1)
		}
	}
	_, err = wire.Ask(ctx, c, "publish", b.record(""), "")
	s.mute = wire.NotAllowed(err)
	switch mark, err := wire.Ask(ctx, c, "get", b.mark); {
	case errors.Is(err, goredis.Nil):
	case err != nil:
		return fail(err)
	default:
		text, _ := mark.(string)
		if !strings.HasPrefix(text, "N1|") {
			return nodeState{err: fmt.Errorf("%w: the value of the Redis key %q was not written by this version of the library, and is left as it is; remove it, or choose another prefix", backend.ErrPermanent, b.mark)}
		}
	}
	return s
}

// warnOf logs settings with which nodes may forget that they have voted, in one line
// for all nodes that have them.
func (b *majority) warnOf(ctx context.Context, logger *slog.Logger, states []nodeState) {
	for i, h := range b.hubs {
		h.Denied = func(err error) {
			b.mute.Do(func() {
				logger.Warn("redlock: the user may not subscribe to the channels of the prefix on this node; where that is so on a majority, waiters here learn of a release only when they ask again",
					"nodes", b.nodes[i].name, "channels", b.prefix+"*", "error", err)
			})
		}
	}
	var silent, evicting, forgetful, delayed, mute []string
	for i, s := range states {
		name := b.nodes[i].name
		if s.mute {
			mute = append(mute, name)
		}
		switch policy := s.info["maxmemory_policy"]; {
		case s.err != nil:
			continue
		case len(s.info) == 0:
			silent = append(silent, name)
			continue
		case policy != "" && policy != "noeviction":
			evicting = append(evicting, name+" "+policy)
		}
		if s.info["aof_enabled"] != "1" {
			forgetful = append(forgetful, name)
		} else if s.fsync != "" && s.fsync != "always" {
			delayed = append(delayed, name+" "+s.fsync)
		}
	}
	warn := func(text string, nodes []string) {
		if len(nodes) > 0 {
			logger.WarnContext(ctx, "redlock: "+text, "nodes", strings.Join(nodes, ", "))
		}
	}
	warn("these nodes don't allow INFO, so that it can't be seen whether one is given twice, nor whether one restarts without its newest data", silent)
	warn("the user may not publish on the channels of the prefix on these nodes, so that waiters elsewhere may learn of a release only when they ask again", mute)
	warn("these nodes may evict locks and tokens when their memory is full; set maxmemory-policy to noeviction", evicting)
	warn(fmt.Sprintf("these nodes keep no append-only file: after a restart they grant nothing for %s (restart_delay)", b.longestDelay), forgetful)
	warn("these nodes can forget their last votes when their machine loses power; set appendfsync to always, or start such a node again only after the longest TTL", delayed)
}
