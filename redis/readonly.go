package redislock

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"
)

// elsewhere sends again what a server has refused because it takes no writes. After a
// switchover the address can lead to another server while the connections to the old
// one, which is a replica now, stay open. go-redis drops the connection that said so,
// one at a time, and dials when none is left, and so does a line. So again is called until
// the refusal comes from a connection that has just been made, or there is none.
func (b *redisBackend) elsewhere(ctx context.Context, refusal error, again func() error) error {
	client, ok := b.client.(*goredis.Client)
	if !ok { // a Cluster's members say MOVED
		return refusal
	}
	before, connections := dials(client)
	for range int(connections) + len(b.lines) + 1 {
		if ctx.Err() != nil || errors.As(refusal, new(fromNew)) {
			return refusal
		}
		if refusal = again(); !goredis.IsReadOnlyError(refusal) {
			b.hub.Moved()
			return refusal
		}
		if now, _ := dials(client); now != before {
			return refusal
		}
	}
	return refusal
}

// dials are how many connections were made because none was idle, and how many there
// are, in both pools of the client.
func dials(client *goredis.Client) (made, connections uint32) {
	stats := client.PoolStats()
	made, connections = stats.Misses, stats.TotalConns
	if stats.PipelineStats != nil {
		made += stats.PipelineStats.Misses
		connections += stats.PipelineStats.TotalConns
	}
	return made, connections
}

// fromNew is a refusal that came on a connection that a line has just made.
type fromNew struct{ error }

func (f fromNew) Unwrap() error { return f.error }
