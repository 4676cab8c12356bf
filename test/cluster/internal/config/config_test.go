package config

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"tessera.dev/tessera/test/cluster/internal/layout"
)

func testLayout(t *testing.T) layout.Layout {
	t.Helper()
	l, err := layout.New("/t")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestControlPlane(t *testing.T) {
	commands := ControlPlane(testLayout(t), "/bin/k8s", Ports{API: 1, Etcd: 2, EtcdPeer: 3, ControllerManager: 4, Scheduler: 5})
	want := map[string][]string{
		"etcd":                    {"--listen-client-urls=https://127.0.0.1:2", "--client-cert-auth"},
		"kube-apiserver":          {"--secure-port=1", "--etcd-servers=https://127.0.0.1:2", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"},
		"kube-controller-manager": {"--secure-port=4", "--use-service-account-credentials=true", "--root-ca-file=/t/pki/ca.crt"},
		"kube-scheduler":          {"--secure-port=5", "--kubeconfig=/t/config/kube-scheduler.kubeconfig"},
	}
	if len(commands) != len(want) {
		t.Fatalf("%d commands", len(commands))
	}
	for _, c := range commands {
		if c.Path != "/bin/k8s/"+c.Name {
			t.Errorf("%s is run from %s", c.Name, c.Path)
		}
		for _, arg := range want[c.Name] {
			if !slices.Contains(c.Args, arg) {
				t.Errorf("%s lacks %s: %v", c.Name, arg, c.Args)
			}
		}
		for _, arg := range c.Args {
			if strings.Contains(arg, "feature-gates") {
				t.Errorf("%s: %s, but the gates stay at their defaults", c.Name, arg)
			}
		}
	}
}

func TestNodesDoNotCollide(t *testing.T) {
	l := testLayout(t)
	seen := map[string]int{}
	for i := range layout.MaxNodes {
		n := l.Node(i)
		for _, s := range []string{n.Name, n.IP(), n.PodCIDR(), n.ContainerdSocket()} {
			if before, ok := seen[s]; ok {
				t.Errorf("nodes %d and %d share %s", before, i, s)
			}
			seen[s] = i
		}
	}
	commands := Node(l, l.Node(1), "/bin/k8s", "/usr/bin")
	kubelet := commands[len(commands)-1]
	if !slices.Contains(kubelet.Args, "--hostname-override=tessera-node-1") {
		t.Errorf("the kubelet cannot be found by its node's name: %v", kubelet.Args)
	}
}

func TestKubelet(t *testing.T) {
	l := testLayout(t)
	for _, v1 := range []bool{false, true} {
		data, err := Kubelet(l, l.Node(3), KubeletOptions{CgroupV1: v1, CgroupRoot: "/c/n3", ResolvConf: "/etc/resolv.conf"})
		if err != nil {
			t.Fatal(err)
		}
		var c map[string]any
		if err := yaml.Unmarshal(data, &c); err != nil {
			t.Fatal(err)
		}
		if fail, ok := c["failCgroupV1"]; ok != v1 || (v1 && fail != false) {
			t.Errorf("cgroup v1 %v: failCgroupV1 %v", v1, fail)
		}
		for key, want := range map[string]any{"cgroupRoot": "/c/n3", "address": "10.89.0.13", "makeIPTablesUtilChains": false, "kind": "KubeletConfiguration"} {
			if c[key] != want {
				t.Errorf("%s = %v, want %v", key, c[key], want)
			}
		}
	}
}

func TestContainerd(t *testing.T) {
	l := testLayout(t)
	text := string(Containerd(l, l.Node(0), "/bin/k8s"))
	for _, want := range []string{
		"version = 4\n", `root = "/t/nodes/0/containerd"`, `sandbox = "tessera.dev/pause:dev"`, `BinaryName = "/bin/k8s/runc"`,
		`bin_dirs = ["/bin/k8s"]`, `conf_dir = "/t/nodes/0/cni"`, "SystemdCgroup = false", "restrict_oom_score_adj = true",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
}

func TestCNI(t *testing.T) {
	data, err := CNI(testLayout(t).Node(7))
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Plugins []struct {
			Type string
			IPAM struct{ Type, Subnet string }
		}
	}
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Plugins) != 1 || c.Plugins[0].Type != "ptp" || c.Plugins[0].IPAM.Type != "host-local" || c.Plugins[0].IPAM.Subnet != "10.88.7.0/24" {
		t.Errorf("network %+v", c)
	}
}
