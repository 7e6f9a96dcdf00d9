package etcdlock_test

import (
	"context"
	"fmt"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortiselock/lock"
	etcdlock "github.com/mortiselock/lock/etcd"
)

// The cluster comes from a URL.
func Example() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, "etcd://h1:2379,h2:2379,h3:2379/myapp", nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = locker.Close() }()

	lease, err := locker.Acquire(ctx, "nightly-report")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = lease.Release(ctx) }()
	// work, until lease.Context() ends
}

// A client of the caller's is neither changed nor closed.
func ExampleNew() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://localhost:2379"}, Logger: zap.NewNop()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = client.Close() }()
	locker, err := etcdlock.New(ctx, client, &etcdlock.Options{Prefix: "myapp/"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer func() { _ = locker.Close() }()
}

// A guarded write happens only while the lease is held.
func ExampleTxn() {
	report := func(ctx context.Context, lease lock.Lease) error {
		_, err := etcdlock.Txn(ctx, lease).Then(clientv3.OpPut("report", "done")).Commit()
		return err // matches lock.ErrNotHeld when the lease was lost
	}
	_ = report
}
