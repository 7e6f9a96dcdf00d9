package servertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// Authority signs certificates for a test. Its methods may be called at the same time.
type Authority struct {
	t    TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
	last atomic.Int64
}

// NewAuthority makes an authority and its directory, which goes at the test's cleanup.
func NewAuthority(t TB, name string) *Authority {
	t.Helper()
	dir, err := newTempDir("ca", false)
	if err != nil {
		t.Fatalf("servertest: %v", err)
		return nil
	}
	t.Cleanup(func() { _ = dir.remove() })
	a := &Authority{t: t, dir: dir.path}
	a.file, _ = a.sign(name, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	return a
}

// File is the path of the authority's own certificate, in PEM.
func (a *Authority) File() string { return a.file }

// Server makes a certificate for a host, with which a server may also dial others, and
// returns the paths of it and of its key, in PEM.
func (a *Authority) Server(name string, ips ...net.IP) (cert, key string) {
	a.t.Helper()
	return a.sign(name, func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{name}, ips
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	})
}

// Client makes a certificate for a client, and returns the paths of it and of its key.
func (a *Authority) Client(name string) (cert, key string) {
	a.t.Helper()
	return a.sign(name, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
}

// sign makes a certificate and its key. The first one is the authority's own.
func (a *Authority) sign(name string, with func(c *x509.Certificate)) (cert, key string) {
	a.t.Helper()
	serial := a.last.Add(1)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	with(template)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatalf("servertest: %v", err)
		return "", ""
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err == nil && a.cert == nil {
		a.key = private
		a.cert, err = x509.ParseCertificate(der)
	}
	pkcs8, err2 := x509.MarshalPKCS8PrivateKey(private)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	if err := errors.Join(err, err2, writePEM(cert, "CERTIFICATE", der), writePEM(key, "PRIVATE KEY", pkcs8)); err != nil {
		a.t.Fatalf("servertest: %v", err)
	}
	return cert, key
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
