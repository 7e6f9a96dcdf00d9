package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/mortiselock/lock/internal/failure"
)

// secure shakes hands on a new connection, which it closes on failure. The server has
// to show a certificate for the host of the address, unless cfg names another.
func secure(ctx context.Context, conn net.Conn, address string, cfg *tls.Config) (net.Conn, error) {
	if cfg.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		cfg = cfg.Clone()
		cfg.ServerName = host
	}
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS with %s: %w", address, err)
	}
	return secured, nil
}

// badCertificate reports that one side does not accept the certificate of the other.
func badCertificate(err error) bool {
	if err == nil {
		return false
	}
	return failure.BadCertificate(err) || errors.As(err, new(tls.AlertError)) || strings.Contains(err.Error(), "remote error: tls:")
}
