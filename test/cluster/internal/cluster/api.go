package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"tessera.dev/tessera/test/cluster/internal/pki"
)

// api talks to the API server as an administrator: the few calls that starting a cluster needs.
type api struct {
	server string
	client *http.Client
}

// newAPI makes a client with the administrator's credentials.
func (c *Cluster) newAPI(s state) (*api, error) {
	user, err := pki.ReadKubeconfig(c.Layout.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(user.Cert, user.Key)
	if err != nil {
		return nil, fmt.Errorf("read the administrator's certificate: %w", err)
	}
	ca, err := os.ReadFile(c.Layout.PKI("ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's authority is no certificate: start the cluster anew")
	}
	return &api{server: server(s), client: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}},
	}}, nil
}

func (a *api) do(ctx context.Context, method, path string, body any) (status int, answer []byte, err error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, nil, fmt.Errorf("encode the body of %s %s: %w", method, path, err)
		}
		in = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, a.server+path, in)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := a.client.Do(r)
	if err != nil {
		return 0, nil, fmt.Errorf("call the API server: %w", err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return resp.StatusCode, answer, nil
}

// ready fails until the API server is ready.
func (a *api) ready(ctx context.Context) error {
	status, answer, err := a.do(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("not ready, status %d: %s", status, failedChecks(answer))
	}
	return nil
}

// failedChecks picks the failed checks out of what /readyz says.
func failedChecks(answer []byte) string {
	var failed []string
	for line := range strings.Lines(string(answer)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			failed = append(failed, name)
		}
	}
	return strings.Join(failed, ", ")
}

// allowKubelets lets the API server call kubelets (logs, exec).
func (a *api) allowKubelets(ctx context.Context) error {
	type object = map[string]any
	status, answer, err := a.do(ctx, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
		"metadata": object{"name": "tessera-cluster:" + kubeletClient},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
		"subjects": []object{{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": kubeletClient}},
	})
	if err != nil {
		return err
	}
	if status != http.StatusCreated && status != http.StatusConflict {
		return fmt.Errorf("let the API server call kubelets: status %d: %s", status, answer)
	}
	return nil
}

// podsAllowed fails until the default namespace's service account exists, without which no pod is admitted.
func (a *api) podsAllowed(ctx context.Context) error {
	status, answer, err := a.do(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("get the default service account: status %d: %s", status, answer)
	}
	return nil
}

// nodesReady fails until n nodes are ready.
func (a *api) nodesReady(ctx context.Context, n int) error {
	status, answer, err := a.do(ctx, http.MethodGet, "/api/v1/nodes", nil)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("list the nodes: status %d: %s", status, answer)
	}
	ready, reasons, err := countReady(answer)
	if err != nil {
		return err
	}
	if ready < n {
		return fmt.Errorf("%d of %d nodes are ready %v", ready, n, reasons)
	}
	return nil
}

// countReady counts the ready nodes of a node list in JSON and tells why the others are not.
func countReady(list []byte) (ready int, reasons []string, err error) {
	var nodes struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
	}
	if err := json.Unmarshal(list, &nodes); err != nil {
		return 0, nil, fmt.Errorf("read the list of nodes: %w", err)
	}
	for _, n := range nodes.Items {
		for _, c := range n.Status.Conditions {
			if c.Type != "Ready" {
				continue
			}
			if c.Status == "True" {
				ready++
			} else {
				reasons = append(reasons, n.Metadata.Name+": "+c.Message)
			}
		}
	}
	return ready, reasons, nil
}
