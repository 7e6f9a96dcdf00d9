package wire

import (
	"crypto/tls"
	"fmt"
	"net"

	"github.com/mortiselock/lock/backend"
)

// tlsConfig is that of the parameters, and requires a certificate for the host.
func tlsConfig(addr, ca, cert, key string) (*tls.Config, error) {
	cfg, err := backend.TLSConfig(ca, cert, key)
	if err != nil {
		return nil, fmt.Errorf("mysqllock: %w", err)
	}
	cfg.ServerName = addr
	if host, _, err := net.SplitHostPort(addr); err == nil {
		cfg.ServerName = host
	}
	return cfg, nil
}
