package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func authority(t *testing.T) (*Authority, *x509.CertPool) {
	t.Helper()
	a, err := NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.Pair()
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pair.Cert) {
		t.Fatal("the authority is no certificate")
	}
	return a, pool
}

func leaf(t *testing.T, p Pair) *x509.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}

func TestIssue(t *testing.T) {
	a, pool := authority(t)
	_, others := authority(t)
	server := Request{CommonName: "s", IPs: []string{"10.96.0.1"}, DNSNames: []string{"kubernetes.default"}}
	client := Request{CommonName: "system:node:n", Organization: "system:nodes", Client: true}
	for name, c := range map[string]struct {
		request Request
		options x509.VerifyOptions
		fails   bool
	}{
		"server by name":       {server, x509.VerifyOptions{Roots: pool, DNSName: "kubernetes.default"}, false},
		"server by address":    {server, x509.VerifyOptions{Roots: pool, DNSName: "10.96.0.1"}, false},
		"server, another name": {server, x509.VerifyOptions{Roots: pool, DNSName: "elsewhere"}, true},
		"server as client":     {server, x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true},
		"client":               {client, x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, false},
		"client as server":     {client, x509.VerifyOptions{Roots: pool}, true},
		"another authority":    {server, x509.VerifyOptions{Roots: others}, true},
		"later":                {server, x509.VerifyOptions{Roots: pool, CurrentTime: time.Now().Add(2 * lifetime)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := a.Issue(c.request)
			if err != nil {
				t.Fatal(err)
			}
			cert := leaf(t, p)
			if _, err := cert.Verify(c.options); (err != nil) != c.fails {
				t.Errorf("verify: %v", err)
			}
			if cert.Subject.CommonName != c.request.CommonName {
				t.Errorf("common name %q", cert.Subject.CommonName)
			}
			if o := cert.Subject.Organization; c.request.Organization != "" && (len(o) != 1 || o[0] != c.request.Organization) {
				t.Errorf("organization %q", o)
			}
		})
	}
	if _, err := a.Issue(Request{CommonName: "x", IPs: []string{"nonsense"}}); err == nil {
		t.Error("a wrong address is taken")
	}
}

func TestKubeconfigRoundTrip(t *testing.T) {
	a, _ := authority(t)
	p, err := a.Issue(Request{CommonName: "admin", Client: true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sub", "kubeconfig")
	if err := WriteKubeconfig(file, "https://127.0.0.1:6443", p.Cert, "admin", p); err != nil {
		t.Fatal(err)
	}
	got, err := ReadKubeconfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got.Cert) != string(p.Cert) || string(got.Key) != string(p.Key) {
		t.Error("other credentials came back")
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: others must not read it", info.Mode(), err)
	}
}

func TestPairWrite(t *testing.T) {
	base := filepath.Join(t.TempDir(), "pki", "x")
	if err := (Pair{Cert: []byte("c"), Key: []byte("k")}).Write(base); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(base + ".key")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key: %v, %v", info, err)
	}
}
