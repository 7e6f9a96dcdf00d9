package etcdlock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortiselock/lock"
)

// A proxy in front of the servers refuses in its own words. Waiting does not cure that.
func TestProxyThatRefuses(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unauthenticated} {
		refuse := func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
			return status.Error(code, "RBAC: access denied")
		}
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{"127.0.0.1:1"}, DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(refuse)},
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		_, err = New(t.Context(), client, nil)
		require.ErrorIs(t, err, lock.ErrPermanent)
		assert.NotErrorIs(t, err, lock.ErrUnavailable)
		assert.ErrorContains(t, err, "RBAC: access denied; not in the words of etcd")
	}
}
