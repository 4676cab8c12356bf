package config

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"tessera.dev/tessera/test/cluster/internal/layout"
)

const (
	// PauseImage is the image of every pod's sandbox.
	PauseImage = "tessera.dev/pause:dev"
	// BusyboxImage is the image for workloads.
	BusyboxImage = "tessera.dev/busybox:dev"
	// KubeletPort is every kubelet's port, on its own node's address.
	KubeletPort = 10250
)

// Node returns a node's commands in the order of starting. bin is the folder of the programs.
func Node(l layout.Layout, n layout.Node, bin, path string) []Command {
	return []Command{
		{
			Name: n.Name + "-containerd", Path: filepath.Join(bin, "containerd"),
			Args: []string{"--config=" + l.Config(n.Name+"-containerd.toml")},
			Env:  []string{"PATH=" + bin + ":" + path},
		},
		{
			Name: n.Name + "-kubelet", Path: filepath.Join(bin, "kubelet"),
			Args: []string{
				"--config=" + l.Config(n.Name+"-kubelet.yaml"), "--kubeconfig=" + l.KubeconfigOf(n.Name),
				"--hostname-override=" + n.Name, "--node-ip=" + n.IP(),
			},
			Env: []string{"PATH=" + bin + ":" + path},
		},
	}
}

// KubeletOptions are what a kubelet's configuration depends on beside its node.
type KubeletOptions struct {
	CgroupV1   bool
	CgroupRoot string // such as /tessera-cluster/tessera-node-0
	ResolvConf string // empty for none
}

// Kubelet renders a kubelet's configuration file.
func Kubelet(l layout.Layout, n layout.Node, o KubeletOptions) ([]byte, error) {
	type object = map[string]any
	c := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": n.IP(), "port": KubeletPort, "healthzBindAddress": n.IP(), "healthzPort": 10248,
		"tlsCertFile": l.PKI(n.Name + "-serving.crt"), "tlsPrivateKeyFile": l.PKI(n.Name + "-serving.key"),
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": l.PKI("ca.crt")},
		},
		"authorization": object{"mode": "Webhook"},
		"cgroupDriver":  "cgroupfs", "cgroupRoot": o.CgroupRoot,
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
		"clusterDNS":               []string{layout.DNSIP}, "clusterDomain": "cluster.local", "resolvConf": o.ResolvConf,
		"evictionHard": map[string]string{
			"memory.available": "64Mi", "nodefs.available": "128Mi", "imagefs.available": "128Mi", "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%",
		},
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99, "imageMinimumGCAge": "24h",
		"failSwapOn": false, "makeIPTablesUtilChains": false,
		"maxPods": 250, "registerNode": true, "serializeImagePulls": false,
		"nodeStatusUpdateFrequency": "5s", "nodeStatusReportFrequency": "1m", "nodeLeaseDurationSeconds": 40,
		"kubeAPIQPS": 100, "kubeAPIBurst": 200, "oomScoreAdj": 0,
		"volumePluginDir": "/var/lib/kubelet/volume-plugins",
	}
	if o.CgroupV1 {
		c["failCgroupV1"] = false
	}
	data, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("render the kubelet's configuration of %s: %w", n.Name, err)
	}
	return data, nil
}

// Containerd renders a node's containerd configuration.
func Containerd(l layout.Layout, n layout.Node, bin string) []byte {
	return fmt.Appendf(nil, `version = 4
root = %q
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_criu = false
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = %q
  SystemdCgroup = false
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = %q

[plugins."io.containerd.nri.v1.nri"]
  disable = true
`, n.Containerd(), PauseImage, filepath.Join(bin, "runc"), bin, n.CNI())
}

// CNI renders a node's network: a point-to-point link per pod, addresses from the node's range.
func CNI(n layout.Node) ([]byte, error) {
	type object = map[string]any
	data, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0", "name": "tessera",
		"plugins": []object{{
			"type": "ptp", "ipMasq": false,
			"ipam": object{"type": "host-local", "subnet": n.PodCIDR(), "routes": []object{{"dst": "0.0.0.0/0"}}},
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render the network of %s: %w", n.Name, err)
	}
	return data, nil
}
