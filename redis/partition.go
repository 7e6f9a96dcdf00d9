package redislock

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/mortiselock/lock/backend"
)

var (
	_ backend.Partitioner = (*redisBackend)(nil)
	_ backend.Partitioner = (*fairBackend)(nil)
)

// Partition is the address of the member of a Cluster that serves the key, by what
// the client knows of the Cluster, and "" where there is one server.
func (b *redisBackend) Partition(key string) string {
	cluster, ok := b.client.(*goredis.ClusterClient)
	if !ok {
		return ""
	}
	// On a context that has ended the client asks nobody, if it knows nothing yet.
	member, err := cluster.MasterForKey(ended, b.buckets.namesOf(key).counter())
	if err != nil {
		return ""
	}
	return member.Options().Addr
}

var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (f *fairBackend) Partition(key string) string { return f.b.Partition(key) }
