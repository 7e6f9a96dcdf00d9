package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mortiselock/lock/backend"
	"github.com/mortiselock/lock/internal/failure"
	"github.com/mortiselock/lock/redis/internal/wire"
)

// failure is the error of a request to which too few nodes gave an answer that
// counts. It is never a refusal. If a node that failed may carry the request out later,
// the outcome is unknown too, so that the clean-up goes on until a majority confirms it.
// Nodes that were not waited for have not failed: no answer of theirs would have made
// a difference.
func (b *majority) failure(ctx context.Context, r *round, key string) error {
	var texts []string
	failures, permanent, unknown := 0, true, false
	without := ""
	for i, n := range b.nodes {
		var p problem
		switch r.tally.votes[i] {
		case failed:
			p = b.problemOf(&r.calls[i], key)
		case pending:
			if r.silence == 0 {
				texts = append(texts, n.name+": not waited for")
				continue
			}
			p = problem{text: "no answer within " + r.silence.String(), unknown: true}
		case no:
			if r.telling && r.calls[i].round != nil {
				texts = append(texts, n.name+": "+b.problemOf(&r.calls[i], key).text)
				without = fmt.Sprintf(", %d refused", r.tally.count(no))
			}
			continue
		default:
			continue
		}
		failures++
		texts = append(texts, n.name+": "+p.text)
		permanent = permanent && p.permanent
		unknown = unknown || p.unknown
	}
	sentinel := backend.ErrUnavailable
	if permanent && failures > 0 {
		sentinel = backend.ErrPermanent
	}
	err := fmt.Errorf("%w: %d of %d nodes failed%s, and %d are needed: %s", sentinel, failures, len(b.nodes), without, b.quorum, strings.Join(texts, "; "))
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("redlock: key %q: %w: %w", key, cause, failure.Unmarked(err))
	}
	if unknown {
		err = fmt.Errorf("%w; %w", err, backend.ErrOutcomeUnknown)
	}
	return fmt.Errorf("redlock: key %q: %w", key, err)
}

// problem is why a node can't be counted.
type problem struct {
	text      string
	permanent bool
	unknown   bool // the request may have been carried out
}

func (b *majority) problemOf(c *call, key string) problem {
	if c.round == nil {
		return problem{text: "not asked"}
	}
	if err := c.err; err != nil {
		sentinel := wire.Sentinel(err)
		return problem{
			text:      wire.Sanitized(err).Error() + wire.Hint(err),
			permanent: errors.Is(sentinel, backend.ErrPermanent),
			unknown:   mayHaveRun(c),
		}
	}
	switch v := c.value.(type) {
	case []any:
		if ms, err := strconv.ParseInt(wire.List(v).String(0), 10, 64); err == nil && len(v) == 1 {
			left := time.Duration(ms) * time.Millisecond
			return problem{text: fmt.Sprintf("is new, or has lost its data, and takes no part for another %s", left.Round(time.Millisecond))}
		}
	case int64:
		switch v {
		case 0:
			switch c.script.Hash {
			case renewScript.Hash, acceptScript.Hash:
				return problem{text: "no longer has the key"}
			}
			return problem{text: "does not have the hold"}
		case 2:
			if c.script.Hash == renewScript.Hash {
				return problem{text: "no longer has the key, and somebody else does"}
			}
			return problem{text: "has accepted a larger token for another acquisition"}
		case 3:
			return problem{text: "has the key for a hold whose token it does not know; try again when more nodes answer"}
		case -1:
			return problem{permanent: true, text: fmt.Sprintf("the value of the Redis key %q was not written by this version of the library, and is left as it is; remove it, or choose another prefix", b.record(key))}
		case -2:
			return problem{permanent: true, text: fmt.Sprintf("the Redis key %q is not a token of ours, and is left as it is; remove it, or choose another prefix", b.accepted(key))}
		case -4:
			return problem{permanent: true, text: fmt.Sprintf("the Redis key %q is not a floor of tokens, and is left as it is; remove it, or choose another prefix", b.floor())}
		case -3:
			return problem{permanent: true, text: fmt.Sprintf("the tokens are used up: %q has reached 2^53", b.accepted(key))}
		}
	}
	return problem{text: fmt.Sprintf("gave an unexpected reply of type %T", c.value), unknown: true}
}

func notHeld(key string) error { return failure.NotHeld("redlock", key) }
