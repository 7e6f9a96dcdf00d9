package wire

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"github.com/mortiselock/lock/backend"
)

// tlsConfig trusts the given authority, or the system's where none is given, and
// requires a certificate for the host.
func tlsConfig(addr, ca, cert, key string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("mysqllock: %w: parameter \"ca\": %w", backend.ErrInvalid, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("mysqllock: %w: parameter \"ca\": %s has no PEM certificate", backend.ErrInvalid, ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, invalidURL("cert and key are given together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("mysqllock: %w: parameters \"cert\" and \"key\": %w", backend.ErrInvalid, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
