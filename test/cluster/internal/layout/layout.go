// Package layout knows where the cluster keeps its files, and the addresses and names that it uses.
package layout

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// runDir is where a cluster's state lives where /run is on a disk.
	runDir = "/run/tessera-cluster"
	// libDir is where it lives where /run is in memory: there it would use the memory up, and such mounts often forbid
	// device nodes and programs.
	libDir = "/var/lib/tessera-cluster"
	// ServiceIP is the address of the Service `kubernetes`.
	ServiceIP = "10.96.0.1"
	// ServiceCIDR is the range of Service addresses.
	ServiceCIDR = "10.96.0.0/16"
	// DNSIP is what pods get as name server; nothing answers there.
	DNSIP = "10.96.0.10"
	// NodePrefix starts every node's name.
	NodePrefix = "tessera-node-"
	// MaxNodes bounds the nodes of one cluster, by the address plan below.
	MaxNodes = 100
	// maxSocketPath is what the kernel allows for the path of a unix socket, less its final zero byte.
	maxSocketPath = 107
)

// Layout is where one cluster keeps its files.
type Layout struct{ Dir string }

// DefaultDir is where a cluster's state lives on this machine unless told otherwise.
func DefaultDir() string {
	var fs unix.Statfs_t
	if err := unix.Statfs("/run", &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		return libDir
	}
	return runDir
}

// New returns the layout below dir, below $TESSERA_CLUSTER_DIR if dir is empty, or else below DefaultDir.
func New(dir string) (Layout, error) {
	if dir == "" {
		dir = os.Getenv("TESSERA_CLUSTER_DIR")
	}
	if dir == "" {
		dir = DefaultDir()
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Layout{}, fmt.Errorf("find the cluster's folder %q: %w", dir, err)
	}
	l := Layout{Dir: abs}
	if longest := l.Node(MaxNodes - 1).ContainerdSocket(); len(longest) > maxSocketPath {
		return Layout{}, fmt.Errorf("the folder %s is too long: sockets below it would have %d characters, the kernel allows %d; choose a shorter --dir",
			abs, len(longest), maxSocketPath)
	}
	return l, nil
}

func (l Layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.Dir}, parts...)...)
}

// StateFile describes the running cluster.
func (l Layout) StateFile() string { return l.path("state.json") }

// LockFile is held by the command that changes the cluster; it lies beside the folder, which comes and goes.
func (l Layout) LockFile() string { return l.Dir + ".lock" }

// FailedLogs keeps the logs of a start that failed, until the next start or `down`; it lies beside the folder.
func (l Layout) FailedLogs() string { return l.Dir + ".failed-logs" }

// PKI holds keys and certificates.
func (l Layout) PKI(name string) string { return l.path("pki", name) }

// Kubeconfig is the administrator's.
func (l Layout) Kubeconfig() string { return l.path("kubeconfig") }

// KubeconfigOf is the one of a component.
func (l Layout) KubeconfigOf(component string) string {
	return l.path("config", component+".kubeconfig")
}

// Config holds a configuration file or a plan.
func (l Layout) Config(name string) string { return l.path("config", name) }

// Log is the log of a component.
func (l Layout) Log(name string) string { return l.path("logs", name+".log") }

// Pid is the file that says which process supervises name.
func (l Layout) Pid(name string) string { return l.path("pids", name+".json") }

// Etcd is etcd's data folder.
func (l Layout) Etcd() string { return l.path("etcd") }

// Program is the copy of this program that the supervisors run (the one of `go run` is gone when it ends).
func (l Layout) Program() string { return l.path("bin", "tessera-cluster") }

// Images holds the archives of the cluster's own images.
func (l Layout) Images(name string) string { return l.path("images", name) }

// Bin is a link to the folder of the built programs.
func (l Layout) Bin() string { return l.path("bin", "k8s") }

// Node is where the files of node i are.
func (l Layout) Node(i int) Node {
	return Node{Index: i, Name: fmt.Sprintf("%s%d", NodePrefix, i), dir: l.path("nodes", fmt.Sprint(i))}
}

// Node is the plan of one node.
type Node struct {
	Index int
	Name  string
	dir   string
}

// IP is the node's address.
func (n Node) IP() string { return fmt.Sprintf("10.89.0.%d", n.Index+10) }

// PodCIDR is the range of the node's pods.
func (n Node) PodCIDR() string { return fmt.Sprintf("10.88.%d.0/24", n.Index) }

// ContainerdSocket is the node's containerd socket, as seen from outside of the node.
func (n Node) ContainerdSocket() string {
	return filepath.Join(n.dir, "run-containerd", "containerd.sock")
}

// Containerd is containerd's root folder.
func (n Node) Containerd() string { return filepath.Join(n.dir, "containerd") }

// CNI is the folder of the node's network configuration.
func (n Node) CNI() string { return filepath.Join(n.dir, "cni") }

// Kubelet is the folder that the node sees as /var/lib/kubelet.
func (n Node) Kubelet() string { return filepath.Join(n.dir, "kubelet") }

// Binds are the folders that each node has of its own: what the node sees, and where it lies outside.
func (n Node) Binds() [][2]string {
	return [][2]string{
		{"/var/lib/kubelet", n.Kubelet()},
		{"/run/containerd", filepath.Join(n.dir, "run-containerd")},
		{"/run/mount", filepath.Join(n.dir, "run-mount")},
		{"/run/cdi", filepath.Join(n.dir, "run-cdi")},
		{"/etc/cdi", filepath.Join(n.dir, "etc-cdi")},
		{"/var/log/pods", filepath.Join(n.dir, "log-pods")},
		{"/var/log/containers", filepath.Join(n.dir, "log-containers")},
		{"/var/lib/cni", filepath.Join(n.dir, "lib-cni")},
	}
}
