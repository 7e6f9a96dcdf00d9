package zklock

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/mortiselock/lock/backend"
)

// tlsConfig trusts the given authority, or the system's where none is given.
func tlsConfig(ca, cert, key string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("zklock: %w: parameter \"ca\": %w", backend.ErrInvalid, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, invalid("parameter \"ca\": %s has no PEM certificate", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, invalid("URL: cert and key are given together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("zklock: %w: parameters \"cert\" and \"key\": %w", backend.ErrInvalid, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

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
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(x509.HostnameError)) ||
		errors.As(err, new(tls.AlertError)) || strings.Contains(err.Error(), "remote error: tls:")
}
