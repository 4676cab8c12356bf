package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// modules writes source modules with some content each.
func modules(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "test", "cluster", "source")
	for _, p := range Programs() {
		for _, name := range []string{"go.mod", "go.sum"} {
			file := filepath.Join(dir, p.Module, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(p.Module+name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func key(t *testing.T, dir, version, platform string) string {
	t.Helper()
	k, err := Key(dir, version, platform)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKey(t *testing.T) {
	dir := modules(t)
	first := key(t, dir, "go1.26.0", "linux/amd64")
	if len(first) != 16 || first != key(t, modules(t), "go1.26.0", "linux/amd64") {
		t.Errorf("the key of the same content differs, or is not 16 digits: %s", first)
	}
	if first == key(t, dir, "go1.26.1", "linux/amd64") {
		t.Error("the key does not depend on the Go version")
	}
	if first == key(t, dir, "go1.26.0", "linux/arm64") {
		t.Error("the key does not depend on the platform")
	}
	seen := map[string]string{first: "nothing changed"}
	for _, file := range []string{"kubernetes/go.mod", "runc/go.sum", "etcd/main.go"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
		k := key(t, dir, "go1.26.0", "linux/amd64")
		if before, ok := seen[k]; ok {
			t.Errorf("the key after a change of %s is that of %s", file, before)
		}
		seen[k] = file
	}
	if err := os.Remove(filepath.Join(dir, "cni", "go.sum")); err != nil {
		t.Fatal(err)
	}
	if _, err := Key(dir, "go1.26.0", "linux/amd64"); err == nil || !strings.Contains(err.Error(), "cni") {
		t.Errorf("a missing go.sum gives %v, want an error that names the module", err)
	}
}

func TestFind(t *testing.T) {
	dir := modules(t)
	root := filepath.Join(dir, "..", "..", "..")
	below := filepath.Join(root, "pkg", "deep")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, wd := range []string{root, below, filepath.Join(dir, ".."), filepath.Join(dir, "cni")} {
		t.Chdir(wd)
		got, err := Find("")
		if err != nil {
			t.Errorf("from %s: %v", wd, err)
			continue
		}
		if filepath.Base(got) != "source" {
			t.Errorf("from %s: %s", wd, got)
		}
	}
	t.Chdir(t.TempDir())
	if _, err := Find(""); err == nil || !strings.Contains(err.Error(), "--sources") {
		t.Errorf("outside of a repository: %v, want an error that says what to do", err)
	}
	if _, err := Find(t.TempDir()); err == nil {
		t.Error("a given folder without source modules is taken")
	}
	if got, err := Find(dir); err != nil || got != dir {
		t.Errorf("Find(%s) = %s, %v", dir, got, err)
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("TESSERA_CACHE", "/somewhere")
	if got, err := CacheDir(); err != nil || got != "/somewhere/cluster" {
		t.Errorf("CacheDir = %s, %v", got, err)
	}
	t.Setenv("TESSERA_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/xdg")
	if got, err := CacheDir(); err != nil || got != "/xdg/tessera/cluster" {
		t.Errorf("CacheDir = %s, %v", got, err)
	}
}

// TestKubernetesVersion keeps the version that the programs tell in step with the module that they are built from.
func TestKubernetesVersion(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "source", "kubernetes", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "k8s.io/kubernetes "+KubernetesVersion) {
		t.Errorf("source/kubernetes/go.mod does not require k8s.io/kubernetes %s", KubernetesVersion)
	}
}
