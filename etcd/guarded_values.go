package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock"
	"github.com/mortiselock/lock/internal/guarded"
)

var _ guarded.Keeper = (*etcdBackend)(nil)

// guardedValuesLife is when the values end by themselves, in seconds.
const guardedValuesLife = 3600

// GuardedValues implements guarded.Keeper with keys under a lease of their own.
func (b *etcdBackend) GuardedValues(ctx context.Context) (guarded.Values, error) {
	lease, err := b.client.Grant(ctx, guardedValuesLife)
	if err != nil {
		return nil, harmless(ctx, err)
	}
	return &guardedValues{client: b.client, prefix: fmt.Sprintf("%svalues/%016x/", b.prefix, uint64(lease.ID)), lease: lease.ID}, nil
}

type guardedValues struct {
	client *clientv3.Client
	prefix string
	lease  clientv3.LeaseID
}

func (v *guardedValues) nameOf(key string) string { return v.prefix + escape(key) }

func (v *guardedValues) Write(ctx context.Context, lease lock.Lease, value string) error {
	_, err := Txn(ctx, lease).Then(clientv3.OpPut(v.nameOf(lease.Key()), value, clientv3.WithLease(v.lease))).Commit()
	return err
}

func (v *guardedValues) Read(ctx context.Context, key string) (string, error) {
	resp, err := v.client.Get(ctx, v.nameOf(key))
	if err != nil || len(resp.Kvs) == 0 {
		return "", err
	}
	return string(resp.Kvs[0].Value), nil
}

func (v *guardedValues) Remove(ctx context.Context) error {
	_, err := v.client.Revoke(ctx, v.lease)
	return err
}
