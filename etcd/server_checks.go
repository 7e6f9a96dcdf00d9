package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortiselock/lock/backend"
)

const (
	// openLimit bounds the requests of the opening when the caller's context does
	// not, since a cluster without a quorum does not answer. It is the dial timeout of the
	// client too, which bounds nothing here but the first token of a user.
	openLimit = 5 * time.Second
	// versionLimit is how long an endpoint may take to tell its version, so that one
	// that is down does not hold up the opening.
	versionLimit = time.Second
	// usualMinTTL is what a cluster with the default timing grants at least: one and
	// a half election timeouts, rounded up.
	usualMinTTL = 2 * time.Second
)

// checkServers asks for a lease of the smallest TTL, for permission on the prefix
// and for the versions. None of it changes anything that lasts.
func (b *etcdBackend) checkServers(ctx context.Context, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	if err := whyUnreachable(ctx, b.client, b.tls, whyLimit); err != nil {
		return b.openError(ctx, err) // the client library would try again until the time is over
	}
	versions := make(chan []string, 1)
	b.detach(versionLimit, func(ctx context.Context) { versions <- b.versions(ctx) })
	var resp *clientv3.LeaseGrantResponse
	err := b.attempts(ctx, func(ctx context.Context) (err error) {
		resp, err = b.client.Grant(ctx, 1)
		return err
	})
	if err == nil {
		err = b.attempts(ctx, func(ctx context.Context) error { return b.revokeLease(ctx, resp.ID) })
	}
	if err != nil && !leaseNotFound(err) {
		return b.openError(ctx, err)
	}
	b.guarantees = guarantees(time.Duration(resp.TTL) * time.Second)
	if err := b.checkPermission(ctx); err != nil {
		return b.openError(ctx, err)
	}
	told := map[string]bool{} // by members of the same version
	for _, v := range <-versions {
		if forgetsRevocations(v) && !told[v] {
			told[v] = true
			logger.WarnContext(ctx, "etcdlock: this release of etcd may revoke a lease that was renewed when its leader stalls, so that two holders are possible; upgrade to 3.5.23, 3.6.5 or later",
				"version", v)
		}
	}
	return nil
}

// checkPermission sends a transaction that does nothing but has to be permitted:
// its condition is never true, and both branches are checked. The floor is read, where
// there is one.
func (b *etcdBackend) checkPermission(ctx context.Context) error {
	end := clientv3.GetPrefixRangeEnd(b.prefix)
	never := clientv3.Compare(clientv3.Version(b.prefix), "<", 0)
	var resp *clientv3.TxnResponse
	err := b.attempts(ctx, func(ctx context.Context) (err error) {
		resp, err = b.client.Txn(ctx).If(never).Then(
			clientv3.OpPut(b.prefix, ""),
			clientv3.OpDelete(b.prefix+"keys/", clientv3.WithRange(end)),
		).Else(
			clientv3.OpGet(b.prefix, clientv3.WithRange(end), clientv3.WithCountOnly()),
			clientv3.OpGet(floorName(b.prefix)),
		).Commit()
		return err
	})
	if err != nil {
		return err
	}
	return b.floorMoved(oldest(resp.Responses[1].GetResponseRange()))
}

// openError is the error of a request of the opening. What is not a refusal for
// good is "unavailable".
func (b *etcdBackend) openError(ctx context.Context, err error) error {
	err = harmless(ctx, err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if why := whyUnreachable(context.WithoutCancel(ctx), b.client, b.tls, alertLimit); why != nil {
			err = fmt.Errorf("%w; the last attempt: %w", err, describe(ctx, why))
		}
	}
	if errors.Is(err, backend.ErrPermanent) {
		return fmt.Errorf("etcdlock: open: %w (prefix %q)", err, b.prefix)
	}
	return fmt.Errorf("etcdlock: open: %w; check that an etcd cluster with a leader answers at %s", err, strings.Join(b.client.Endpoints(), ", "))
}

// versions asks every endpoint. Those that don't answer are left out.
func (b *etcdBackend) versions(ctx context.Context) []string {
	answers := make(chan string)
	endpoints := b.client.Endpoints()
	for _, e := range endpoints {
		go func() {
			status, err := b.client.Status(ctx, e)
			if err != nil {
				answers <- ""
				return
			}
			answers <- status.Version
		}()
	}
	var found []string
	for range endpoints {
		if v := <-answers; v != "" {
			found = append(found, v)
		}
	}
	return found
}

// forgetsRevocations recognises the releases whose leases are faulty: a leader that stalls
// may revoke a lease that its successor has renewed, or confirm a renewal although its
// lease was revoked (etcd-io/etcd issues 12528, 15247 and 20589, corrected in 3.5.23 and 3.6.5 but for a
// moment, see pull request 16822; 3.4 was not corrected). Of a version that cannot be read nothing is said.
func forgetsRevocations(version string) bool {
	version, _, _ = strings.Cut(version, "-")
	var n [3]int
	parts := strings.SplitN(version, ".", 3)
	if len(parts) != 3 {
		return false
	}
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(p); err != nil {
			return false
		}
	}
	switch {
	case n[0] != 3:
		return n[0] < 3
	case n[1] == 5:
		return n[2] < 23
	case n[1] == 6:
		return n[2] < 5
	}
	return n[1] < 5
}
