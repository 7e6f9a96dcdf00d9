package etcdlock

import (
	"context"
	"crypto/tls"
	"net/url"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortiselock/lock/internal/failure"
)

const (
	// whyLimit is how long an attempt may take that is made to learn what is wrong.
	whyLimit = 500 * time.Millisecond
	// alertLimit is the same where nothing else is tried any more: an endpoint that answers
	// shakes hands in that time on a busy machine, too.
	alertLimit = openLimit
)

// whyUnreachable returns why there is no connection to any endpoint, and nil when
// there is one, or when that can't be told. The client library repeats its requests
// until their time is over, and then says no more than that it is; this one it does
// not repeat. conf is that of the client's connections, if it is known; limit is how long an
// endpoint may take to say what it has against our certificate.
func whyUnreachable(ctx context.Context, client *clientv3.Client, conf *tls.Config, limit time.Duration) error {
	attempt, cancel := context.WithTimeout(ctx, whyLimit)
	defer cancel()
	_, err := pb.NewKVClient(client.ActiveConnection()).Range(attempt, &pb.RangeRequest{Key: []byte("mortise"), CountOnly: true, Serializable: true})
	if status.Code(err) != codes.Unavailable || strings.Contains(status.Convert(err).Message(), "etcdserver:") {
		return nil
	}
	if conf != nil && !badCertificate(err) {
		// gRPC tells of the write that failed, and not of the alert that came before.
		if refused := alertOf(ctx, client.Endpoints(), conf, limit); refused != nil {
			return refused
		}
	}
	return err
}

// alertOf shakes hands with all endpoints, and returns what one has against our
// certificate or we against its. In TLS 1.3 a server says so after the handshake.
func alertOf(ctx context.Context, endpoints []string, conf *tls.Config, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conf = conf.Clone()
	conf.NextProtos = []string{"h2"}
	said := make(chan error, len(endpoints))
	for _, endpoint := range endpoints {
		go func() {
			u, err := url.Parse(endpoint)
			if err == nil {
				err = shakeHands(ctx, u.Host, conf)
			}
			said <- err
		}()
	}
	for range endpoints {
		if err := <-said; badCertificate(err) {
			return err
		}
	}
	return nil
}

// shakeHands writes nothing after the handshake: what the server says would be lost with the
// connection.
func shakeHands(ctx context.Context, host string, conf *tls.Config) error {
	conn, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(end)
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// badCertificate reports that one side does not accept the certificate of the other.
func badCertificate(err error) bool {
	if err == nil {
		return false
	}
	if failure.BadCertificate(err) {
		return true
	}
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		if s.Code() != codes.Unavailable {
			return false
		}
		text = s.Message()
	}
	return strings.Contains(text, "authentication handshake failed") && (strings.Contains(text, "x509:") || strings.Contains(text, "tls:")) ||
		strings.Contains(text, "remote error: tls:")
}
