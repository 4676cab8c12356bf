// Package source builds the cluster's programs from the source modules beside it.
package source

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Program is one executable of the cluster.
type Program struct {
	Name    string // of the file
	Module  string // folder below the sources
	Package string // import path, or "." for the module's own
	Cgo     bool
	Tags    string
}

// Programs returns what a cluster needs, in the order of building: long ones first.
func Programs() []Program {
	k := func(name string) Program {
		return Program{Name: name, Module: "kubernetes", Package: "k8s.io/kubernetes/cmd/" + name}
	}
	c := func(name string) Program {
		return Program{Name: name, Module: "containerd", Package: "github.com/containerd/containerd/v2/cmd/" + name}
	}
	n := func(kind, name string) Program {
		return Program{Name: name, Module: "cni", Package: "github.com/containernetworking/plugins/plugins/" + kind + "/" + name}
	}
	return []Program{
		k("kube-apiserver"), k("kubelet"), k("kube-controller-manager"), k("kube-scheduler"), k("kubectl"),
		c("containerd"), c("containerd-shim-runc-v2"), c("ctr"),
		{Name: "runc", Module: "runc", Package: "github.com/opencontainers/runc", Cgo: true, Tags: "seccomp"},
		n("main", "ptp"), n("main", "loopback"), n("ipam", "host-local"),
		{Name: "etcd", Module: "etcd", Package: "."},
		{Name: "helm", Module: "helm", Package: "helm.sh/helm/v4/cmd/helm"},
	}
}

// KubernetesVersion is what the Kubernetes programs say of themselves; it is the module's version in source/kubernetes/go.mod.
const KubernetesVersion = "v1.37.2"

func ldflags(module string) string {
	if module != "kubernetes" {
		return "-s -w"
	}
	return "-s -w -X k8s.io/component-base/version.gitVersion=" + KubernetesVersion +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37" +
		" -X k8s.io/client-go/pkg/version.gitVersion=" + KubernetesVersion
}

// Find returns the folder of the source modules: given, or test/cluster/source or source at or above the working directory.
func Find(given string) (string, error) {
	if given != "" {
		abs, err := filepath.Abs(given)
		if err != nil {
			return "", fmt.Errorf("find the source modules %q: %w", given, err)
		}
		if !isSource(abs) {
			return "", fmt.Errorf("%s holds no kubernetes/go.mod: give --sources the folder test/cluster/source of Tessera's repository", abs)
		}
		return abs, nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		for _, candidate := range []string{filepath.Join(dir, "test", "cluster", "source"), filepath.Join(dir, "source")} {
			if isSource(candidate) {
				return candidate, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no test/cluster/source at or above %s: run this inside Tessera's repository or give --sources", wd)
		}
	}
}

func isSource(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "kubernetes", "go.mod"))
	return err == nil
}

// Key names the set of programs that the source modules in dir make with a Go version (as `go env GOVERSION` says it)
// for a platform such as linux/amd64: 16 hexadecimal digits.
func Key(dir, goVersion, platform string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "go %s\nplatform %s\n", goVersion, platform)
	var modules []string
	for _, p := range Programs() {
		fmt.Fprintf(h, "program %q %q %q %v %q %q\n", p.Name, p.Module, p.Package, p.Cgo, p.Tags, ldflags(p.Module))
		if !slices.Contains(modules, p.Module) {
			modules = append(modules, p.Module)
		}
	}
	slices.Sort(modules)
	for _, m := range modules {
		for _, name := range []string{"go.mod", "go.sum", "main.go"} {
			data, err := os.ReadFile(filepath.Join(dir, m, name))
			if errors.Is(err, os.ErrNotExist) && name == "main.go" {
				continue
			}
			if err != nil {
				return "", fmt.Errorf("read the source module %s: %w", m, err)
			}
			fmt.Fprintf(h, "file %s/%s %d\n", m, name, len(data))
			h.Write(data)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// CacheDir is where built programs are kept: $TESSERA_CACHE, $XDG_CACHE_HOME/tessera or ~/.cache/tessera, and below it cluster.
func CacheDir() (string, error) {
	if dir := os.Getenv("TESSERA_CACHE"); dir != "" {
		return filepath.Abs(filepath.Join(dir, "cluster"))
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache folder (set TESSERA_CACHE): %w", err)
	}
	return filepath.Join(dir, "tessera", "cluster"), nil
}
