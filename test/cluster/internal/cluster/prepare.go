package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tessera.dev/tessera/test/cluster/internal/cgroup"
	"tessera.dev/tessera/test/cluster/internal/config"
	"tessera.dev/tessera/test/cluster/internal/layout"
	"tessera.dev/tessera/test/cluster/internal/network"
	"tessera.dev/tessera/test/cluster/internal/pki"
	"tessera.dev/tessera/test/cluster/internal/supervise"
)

// kubeletClient is who the API server is to kubelets.
const kubeletClient = "kube-apiserver-kubelet-client"

// choosePorts picks the control plane's ports: the usual ones where they are free.
func choosePorts() (config.Ports, error) {
	var p config.Ports
	taken := map[int]bool{}
	for _, c := range []struct {
		port *int
		want int
	}{{&p.API, 6443}, {&p.Etcd, 2379}, {&p.EtcdPeer, 2380}, {&p.ControllerManager, 10257}, {&p.Scheduler, 10259}} {
		var err error
		if *c.port, err = network.FreePort(c.want, taken); err != nil {
			return p, err
		}
	}
	return p, nil
}

// writePKI makes the authorities, every certificate and every kubeconfig.
func (c *Cluster) writePKI(s state) error {
	l := c.Layout
	ca, err := pki.NewAuthority("tessera-cluster", time.Now())
	if err != nil {
		return err
	}
	caPair, err := ca.Pair()
	if err != nil {
		return err
	}
	front, err := pki.NewAuthority("tessera-cluster-front-proxy", time.Now())
	if err != nil {
		return err
	}
	frontPair, err := front.Pair()
	if err != nil {
		return err
	}
	if err := caPair.Write(l.PKI("ca")); err != nil {
		return err
	}
	if err := frontPair.Write(l.PKI("front-proxy-ca")); err != nil {
		return err
	}
	files := []struct {
		by   *pki.Authority
		name string
		r    pki.Request
	}{
		{ca, "apiserver", pki.Request{
			CommonName: "kube-apiserver", IPs: []string{"127.0.0.1", layout.ServiceIP},
			DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		}},
		{ca, "etcd", pki.Request{CommonName: "etcd", IPs: []string{"127.0.0.1"}, DNSNames: []string{"localhost"}, Client: true}},
		{ca, "etcd-client", pki.Request{CommonName: "kube-apiserver-etcd-client", Client: true}},
		{ca, "kubelet-client", pki.Request{CommonName: kubeletClient, Client: true}},
		{ca, "sa", pki.Request{CommonName: "service-accounts"}},
		{front, "front-proxy-client", pki.Request{CommonName: "front-proxy-client", Client: true}},
	}
	users := []struct {
		file string
		r    pki.Request
	}{
		{l.Kubeconfig(), pki.Request{CommonName: "kubernetes-admin", Organization: "system:masters", Client: true}},
		{l.KubeconfigOf("kube-controller-manager"), pki.Request{CommonName: "system:kube-controller-manager", Client: true}},
		{l.KubeconfigOf("kube-scheduler"), pki.Request{CommonName: "system:kube-scheduler", Client: true}},
	}
	for i := range s.Nodes {
		n := l.Node(i)
		files = append(files, struct {
			by   *pki.Authority
			name string
			r    pki.Request
		}{ca, n.Name + "-serving", pki.Request{CommonName: "system:node:" + n.Name, Organization: "system:nodes", IPs: []string{n.IP()}, DNSNames: []string{n.Name}}})
		users = append(users, struct {
			file string
			r    pki.Request
		}{l.KubeconfigOf(n.Name), pki.Request{CommonName: "system:node:" + n.Name, Organization: "system:nodes", Client: true}})
	}
	for _, f := range files {
		pair, err := f.by.Issue(f.r)
		if err != nil {
			return err
		}
		if err := pair.Write(l.PKI(f.name)); err != nil {
			return err
		}
	}
	for _, u := range users {
		pair, err := ca.Issue(u.r)
		if err != nil {
			return err
		}
		if err := pki.WriteKubeconfig(u.file, server(s), caPair.Cert, u.r.CommonName, pair); err != nil {
			return err
		}
	}
	return nil
}

func server(s state) string { return fmt.Sprintf("https://127.0.0.1:%d", s.Ports.API) }

// writeConfig makes configuration files and the supervisors' plans.
func (c *Cluster) writeConfig(s state, hs []cgroup.Hierarchy) error {
	l := c.Layout
	for _, dir := range []string{filepath.Dir(l.Config("x")), filepath.Dir(l.Log("x")), l.Config("flex-volumes")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a folder of the cluster: %w", err)
		}
	}
	plan := supervise.Plan{
		Cgroup:   cgroup.OwnerDir(hs, cgroup.Root+"/"+controlPlane),
		Forward:  &supervise.Forward{Listen: layout.ServiceIP + ":443", To: fmt.Sprintf("127.0.0.1:%d", s.Ports.API)},
		Commands: config.ControlPlane(l, s.Bin, s.Ports),
		Logs:     filepath.Dir(l.Log("x")),
	}
	if err := plan.Write(l.Config(controlPlane + ".plan")); err != nil {
		return err
	}
	for i := range s.Nodes {
		if err := c.writeNode(s, l.Node(i), hs); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) writeNode(s state, n layout.Node, hs []cgroup.Hierarchy) error {
	l := c.Layout
	resolvConf := "/etc/resolv.conf"
	if _, err := os.Stat(resolvConf); err != nil {
		resolvConf = ""
	}
	kubelet, err := config.Kubelet(l, n, config.KubeletOptions{CgroupV1: cgroup.V1(hs), CgroupRoot: nodeCgroup(n), ResolvConf: resolvConf})
	if err != nil {
		return err
	}
	cni, err := config.CNI(n)
	if err != nil {
		return err
	}
	for file, data := range map[string][]byte{
		l.Config(n.Name + "-kubelet.yaml"):            kubelet,
		l.Config(n.Name + "-containerd.toml"):         config.Containerd(l, n, s.Bin),
		filepath.Join(n.CNI(), "10-tessera.conflist"): cni,
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("make a folder of %s: %w", n.Name, err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return fmt.Errorf("write a configuration file of %s: %w", n.Name, err)
		}
	}
	return supervise.Plan{
		Cgroup: cgroup.OwnerDir(hs, cgroup.Root+"/"+n.Name+"-system"), Binds: n.Binds(),
		Commands: config.Node(l, n, s.Bin, os.Getenv("PATH")), Logs: filepath.Dir(l.Log("x")),
	}.Write(l.Config(n.Name + ".plan"))
}

// nodeCgroup is the cgroup below which a node's kubelet puts its pods.
func nodeCgroup(n layout.Node) string { return cgroup.Root + "/" + n.Name }
