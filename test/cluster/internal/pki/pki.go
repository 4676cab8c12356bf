// Package pki makes the cluster's authority, certificates and kubeconfigs.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is how long certificates last: a test cluster lives shorter.
const lifetime = 365 * 24 * time.Hour

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
}

// Pair is a certificate and its key, PEM-encoded.
type Pair struct{ Cert, Key []byte }

// Request says what a certificate is for.
type Request struct {
	CommonName   string
	Organization string   // empty for none
	IPs          []string // with DNSNames: makes it good for a server
	DNSNames     []string
	Client       bool // good for a client
}

// NewAuthority makes an authority with a fresh key.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the authority %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key, now: now}, nil
}

// Pair returns the authority's own certificate and key.
func (a *Authority) Pair() (Pair, error) { return encode(a.cert.Raw, a.key) }

// Issue makes a key and signs a certificate for it.
func (a *Authority) Issue(r Request) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make the key of %s: %w", r.CommonName, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Pair{}, fmt.Errorf("make the serial number of %s: %w", r.CommonName, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: r.CommonName},
		NotBefore:    a.now.Add(-time.Hour),
		NotAfter:     a.now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		DNSNames:     r.DNSNames,
	}
	if r.Organization != "" {
		template.Subject.Organization = []string{r.Organization}
	}
	for _, s := range r.IPs {
		ip := net.ParseIP(s)
		if ip == nil {
			return Pair{}, fmt.Errorf("certificate of %s: %q is no IP address", r.CommonName, s)
		}
		template.IPAddresses = append(template.IPAddresses, ip)
	}
	if len(r.IPs)+len(r.DNSNames) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if r.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %s: %w", r.CommonName, err)
	}
	return encode(der, key)
}

func encode(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	k, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode a key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: k}),
	}, nil
}

// Write puts the pair into base.crt and base.key, the key readable by its owner only.
func (p Pair) Write(base string) error {
	if err := os.MkdirAll(filepath.Dir(base), 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", base, err)
	}
	if err := os.WriteFile(base+".crt", p.Cert, 0o644); err != nil {
		return fmt.Errorf("write a certificate: %w", err)
	}
	if err := os.WriteFile(base+".key", p.Key, 0o600); err != nil {
		return fmt.Errorf("write a key: %w", err)
	}
	return nil
}
