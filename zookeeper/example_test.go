package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/mortiselock/lock"
	zklock "github.com/mortiselock/lock/zookeeper"
)

// One Locker per program: its session carries all its leases.
func ExampleNew() {
	ctx := context.Background()
	locker, err := zklock.New(ctx, []string{"zk1:2181", "zk2:2181", "zk3:2181"}, &zklock.Options{
		Lock:   lock.Options{TTL: 12 * time.Second},
		Chroot: "/app",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	err = lock.Do(ctx, locker, "nightly-report", func(ctx context.Context, lease lock.Lease) error {
		fmt.Println("held with token", lease.Token())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A guarded write takes effect only while the lease is held, however late it is sent.
func ExampleGuarded() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, "zk://zk1,zk2,zk3/app", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	lease, err := locker.Acquire(ctx, "leader")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	_, err = zklock.Guarded(ctx, lease, &zk.SetDataRequest{Path: "/app/config", Data: []byte("new"), Version: -1})
	if errors.Is(err, lock.ErrNotHeld) {
		fmt.Println("somebody else leads by now")
	}
}
