// Package config renders the command lines and configuration files of the cluster's programs. Its functions are pure.
package config

import (
	"fmt"
	"path/filepath"

	"tessera.dev/tessera/test/cluster/internal/layout"
)

// Ports are the TCP ports of the control plane on 127.0.0.1.
type Ports struct {
	API, Etcd, EtcdPeer, ControllerManager, Scheduler int
}

// Command is one program to keep running.
type Command struct {
	Name string   // of the log
	Path string   // of the program
	Args []string // without the program's name
	Env  []string // added to the environment
}

// ControlPlane returns the control plane's commands in the order of starting. bin is the folder of the programs.
func ControlPlane(l layout.Layout, bin string, p Ports) []Command {
	command := func(name string, args ...string) Command {
		return Command{Name: name, Path: filepath.Join(bin, name), Args: args}
	}
	return []Command{
		command("etcd", etcdArgs(l, p)...),
		command("kube-apiserver", apiServerArgs(l, p)...),
		command("kube-controller-manager", controllerManagerArgs(l, p)...),
		command("kube-scheduler", schedulerArgs(l, p)...),
	}
}

func etcdArgs(l layout.Layout, p Ports) []string {
	client := fmt.Sprintf("https://127.0.0.1:%d", p.Etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", p.EtcdPeer)
	return []string{
		"--name=tessera", "--data-dir=" + l.Etcd(),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=tessera=" + peer,
		"--client-cert-auth", "--trusted-ca-file=" + l.PKI("ca.crt"),
		"--cert-file=" + l.PKI("etcd.crt"), "--key-file=" + l.PKI("etcd.key"),
		"--unsafe-no-fsync", "--log-level=warn",
	}
}

func apiServerArgs(l layout.Layout, p Ports) []string {
	return []string{
		fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d", p.Etcd),
		"--etcd-cafile=" + l.PKI("ca.crt"), "--etcd-certfile=" + l.PKI("etcd-client.crt"), "--etcd-keyfile=" + l.PKI("etcd-client.key"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", p.API), "--advertise-address=" + layout.ServiceIP,
		"--client-ca-file=" + l.PKI("ca.crt"),
		"--tls-cert-file=" + l.PKI("apiserver.crt"), "--tls-private-key-file=" + l.PKI("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + l.PKI("sa.key"), "--service-account-signing-key-file=" + l.PKI("sa.key"),
		"--service-cluster-ip-range=" + layout.ServiceCIDR,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--kubelet-certificate-authority=" + l.PKI("ca.crt"),
		"--kubelet-client-certificate=" + l.PKI("kubelet-client.crt"), "--kubelet-client-key=" + l.PKI("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + l.PKI("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + l.PKI("front-proxy-client.crt"), "--proxy-client-key-file=" + l.PKI("front-proxy-client.key"),
		// No kube-proxy: webhooks and aggregated servers are called at their endpoints.
		"--enable-aggregator-routing=true",
	}
}

func controllerManagerArgs(l layout.Layout, p Ports) []string {
	kubeconfig := l.KubeconfigOf("kube-controller-manager")
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", p.ControllerManager), "--cert-dir=" + l.PKI("kube-controller-manager"),
		"--client-ca-file=" + l.PKI("ca.crt"), "--root-ca-file=" + l.PKI("ca.crt"),
		"--service-account-private-key-file=" + l.PKI("sa.key"), "--use-service-account-credentials=true",
		"--cluster-signing-cert-file=" + l.PKI("ca.crt"), "--cluster-signing-key-file=" + l.PKI("ca.key"),
		"--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000", "--flex-volume-plugin-dir=" + l.Config("flex-volumes"),
		"--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
	}
}

func schedulerArgs(l layout.Layout, p Ports) []string {
	kubeconfig := l.KubeconfigOf("kube-scheduler")
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", p.Scheduler), "--cert-dir=" + l.PKI("kube-scheduler"),
		"--client-ca-file=" + l.PKI("ca.crt"), "--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000",
	}
}
