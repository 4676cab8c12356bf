package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

const (
	v1Mounts = `33 27 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 33 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:7 - cgroup cgroup rw,cpu,cpuacct
35 33 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 33 0:31 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
37 33 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
38 27 0:33 / /mnt/pids rw - cgroup cgroup rw,pids
`
	v2Mounts = "30 27 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestParseMountinfo(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		count int
		v1    bool
		owner string
	}{
		"v1 with a unified hierarchy": {v1Mounts, 4, true, "/sys/fs/cgroup/pids/tessera-cluster"},
		"v2":                          {v2Mounts, 1, false, "/sys/fs/cgroup/tessera-cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			hs := parseMountinfo(c.text)
			if len(hs) != c.count || V1(hs) != c.v1 {
				t.Fatalf("%d hierarchies, v1 %v: %+v", len(hs), V1(hs), hs)
			}
			if got := OwnerDir(hs, Root); got != c.owner {
				t.Errorf("processes join %s, want %s", got, c.owner)
			}
		})
	}
	if hs := parseMountinfo("nonsense\n1 2 3\n"); len(hs) != 0 {
		t.Errorf("nonsense gives %+v", hs)
	}
}

func TestBelongs(t *testing.T) {
	for groups, want := range map[string]bool{
		"8:pids:/tessera-cluster/control-plane\n0::/\n":      true,
		"9:x:/\n8:pids:/tessera-cluster\n":                   true,
		"0::/tessera-cluster/tessera-node-0/kubepods/pod1\n": true,
		"8:pids:/tessera-cluster-of-somebody-else/x\n":       false,
		"8:pids:/user/tessera-cluster\n":                     false,
		"8:name=/tessera-cluster:/\n":                        false,
		"":                                                   false,
	} {
		if belongs(groups) != want {
			t.Errorf("belongs(%q) = %v", groups, !want)
		}
	}
}

func TestCreateFillsCpusets(t *testing.T) {
	mount := t.TempDir()
	for name, value := range map[string]string{"cpuset.cpus": "0-3\n", "cpuset.mems": "0\n"} {
		if err := os.WriteFile(filepath.Join(mount, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hs := []Hierarchy{{Path: mount, Options: []string{"rw", "cpuset"}}, {Path: t.TempDir(), Options: []string{"memory"}}}
	for range 2 { // a second time changes nothing
		if err := Create(hs, Root+"/node"); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(mount, Root, "node", "cpuset.cpus"))
	if err != nil || string(data) != "0-3\n" {
		t.Errorf("cpuset.cpus: %q, %v", data, err)
	}
}

func TestProcessesAndRemove(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	hs := []Hierarchy{{Path: a}, {Path: b}}
	for dir, procs := range map[string]string{filepath.Join(a, Root, "x"): "7\n3\n0\n", filepath.Join(b, Root): "3\n5\n"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(procs), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := Processes(hs)
	if len(got) != 3 || got[0] != 3 || got[1] != 5 || got[2] != 7 {
		t.Errorf("Processes = %v, want [3 5 7]", got)
	}
	for _, file := range []string{filepath.Join(a, Root, "x", "cgroup.procs"), filepath.Join(b, Root, "cgroup.procs")} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(t.Context(), hs); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(a, Root)); err == nil {
		t.Error("a cgroup is left")
	}
}
