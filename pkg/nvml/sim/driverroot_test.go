package sim_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"tessera.dev/tessera/pkg/nvml/sim"
)

func writeRoot(t *testing.T, m *sim.Machine) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	if err := m.WriteDriverRoot(root, smallBinary(t)); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestDriverRootFiles(t *testing.T) {
	m := machine(t, "dgx-h100")
	root := writeRoot(t, m)
	for name, want := range map[string]string{
		"sys/bus/pci/devices/0000:1b:00.0/numa_node":                                       "0\n",
		"sys/bus/pci/devices/0000:df:00.0/numa_node":                                       "1\n",
		"sys/bus/pci/devices/0000:df:00.0/class":                                           "0x030200\n",
		"sys/bus/pci/devices/0000:df:00.0/vendor":                                          "0x10de\n",
		"sys/bus/pci/devices/0000:df:00.0/device":                                          "0x2330\n",
		"sys/bus/pci/devices/0000:16:00.0/class":                                           "0x060400\n",
		"sys/devices/pci0000:15/0000:15:01.0/class":                                        "0x060400\n",
		"sys/devices/system/node/node1/cpulist":                                            "56-111,168-223\n",
		"sys/devices/system/node/node1/distance":                                           "21 10\n",
		"sys/devices/system/cpu/cpu200/topology/physical_package_id":                       "1\n",
		"proc/driver/nvidia/gpus/0000:c3:00.0/information":                                 m.UUID(5),
		"proc/driver/nvidia/version":                                                       "550.163.01",
		"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":                                       m.UUID(7),
		"usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01":                                   "cannot be loaded",
		"usr/bin/nvidia-smi":                                                               "#!/bin/true\n",
		"sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0/class": "0x030200\n",
	} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(data), want) {
			t.Errorf("%s: %q, want %q in it", name, data, want)
		}
	}
	target, err := os.Readlink(filepath.Join(root, "sys/bus/pci/devices/0000:1b:00.0"))
	if want := "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0"; err != nil || target != want {
		t.Errorf("link %q, %v; want %q", target, err, want)
	}
}

func TestDeviceNodes(t *testing.T) {
	root := writeRoot(t, machine(t, "l40s-pcie-8"))
	want := map[string]uint64{
		"nvidiactl": unix.Mkdev(195, 255), "nvidia-modeset": unix.Mkdev(195, 254),
		"nvidia-uvm": unix.Mkdev(510, 0), "nvidia-uvm-tools": unix.Mkdev(510, 1),
	}
	for minor := range 8 {
		want[fmt.Sprintf("nvidia%d", minor)] = unix.Mkdev(195, uint32(minor))
	}
	entries, err := os.ReadDir(filepath.Join(root, "dev"))
	if err != nil || len(entries) != len(want) {
		t.Errorf("%d nodes, %v; want %d", len(entries), err, len(want))
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Mode != syscall.S_IFCHR|0o666 || stat.Rdev != want[entry.Name()] {
			t.Errorf("%s: mode %o, device %#x, want %#x", entry.Name(), stat.Mode, stat.Rdev, want[entry.Name()])
		}
	}
}

// TestKubernetesReadsTheTree: the helpers that the driver uses find root, NUMA node and socket on every machine.
func TestKubernetesReadsTheTree(t *testing.T) {
	for _, name := range sim.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			p, err := sim.LoadProfile(name)
			if err != nil {
				t.Fatal(err)
			}
			root := writeRoot(t, machine(t, name))
			sysfs := deviceattribute.WithFSFromRoot(filepath.Join(root, "sys"))
			for _, gpu := range p.GPUs {
				attribute, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(gpu.BusID, sysfs)
				if err != nil || attribute.Value.StringValue == nil || *attribute.Value.StringValue != gpu.Root {
					t.Errorf("%s: root %v, %v; want %s", gpu.BusID, attribute.Value.StringValue, err, gpu.Root)
				}
				numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(gpu.BusID, deviceattribute.ScalarAttribute, sysfs)
				if gpu.NUMANode == nil {
					if err == nil {
						t.Errorf("%s: a NUMA node was found where the profile has none", gpu.BusID)
					}
					continue
				}
				if err != nil || *numa.Value.IntValue != int64(*gpu.NUMANode) {
					t.Errorf("%s: NUMA node %v, %v; want %d", gpu.BusID, numa.Value.IntValue, err, *gpu.NUMANode)
				}
				list, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(gpu.BusID, deviceattribute.ListAttribute, sysfs)
				if err != nil {
					t.Fatal(err)
				}
				for _, node := range list.Value.IntValues {
					if socket := p.NUMANodes[node].Socket; socket != p.NUMANodes[*gpu.NUMANode].Socket {
						t.Errorf("%s: node %d in the list is on socket %d", gpu.BusID, node, socket)
					}
				}
			}
		})
	}
}

func TestWriteDriverRootIsIdempotentAndDeterministic(t *testing.T) {
	for _, name := range []string{"dgx-h100", "dgx-a100", "t4-4"} {
		t.Run(name, func(t *testing.T) {
			binary := smallBinary(t)
			root := filepath.Join(t.TempDir(), "root")
			for _, dir := range []string{root, root, root + "2"} {
				if err := machine(t, name).WriteDriverRoot(dir, binary); err != nil {
					t.Fatal(err)
				}
			}
			first, second := fingerprint(t, root, true), fingerprint(t, root+"2", true)
			if fmt.Sprint(first) != fmt.Sprint(second) {
				t.Error("two roots of one machine differ")
			}
			before := fingerprint(t, root, false)
			if err := machine(t, name).WriteDriverRoot(root, binary); err != nil {
				t.Fatal(err)
			}
			if after := fingerprint(t, root, false); fmt.Sprint(before) != fmt.Sprint(after) {
				t.Error("writing again changed something")
			}
		})
	}
}

func TestWriteDriverRootRepairs(t *testing.T) {
	m := machine(t, "a30-2")
	root := writeRoot(t, m)
	want := fingerprint(t, root, true)
	damage := []error{
		os.Remove(filepath.Join(root, "dev/nvidia0")),
		os.WriteFile(filepath.Join(root, "dev/nvidia0"), nil, 0o600),
		os.Chmod(filepath.Join(root, "dev/nvidiactl"), 0o600),
		os.WriteFile(filepath.Join(root, "proc/driver/nvidia/version"), []byte("x"), 0o600),
		os.Chmod(filepath.Join(root, "usr/bin/nvidia-smi"), 0o600),
		os.Remove(filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1")),
		os.Symlink("nowhere", filepath.Join(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1")),
	}
	for _, err := range damage {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := m.WriteDriverRoot(root, smallBinary(t)); err != nil {
		t.Fatal(err)
	}
	if got := fingerprint(t, root, true); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the root was not repaired:\n%v\nwant\n%v", got, want)
	}
}

// TestOtherMachineLeavesNothing: a node whose profile changes has the new machine's files only.
func TestOtherMachineLeavesNothing(t *testing.T) {
	root := writeRoot(t, machine(t, "hgx-16"))
	for _, err := range []error{
		os.WriteFile(filepath.Join(root, "dev", ".temporary"), nil, 0o600),
		os.MkdirAll(filepath.Join(root, "etc/old"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m := machine(t, "a30-2")
	if err := m.WriteDriverRoot(root, smallBinary(t)); err != nil {
		t.Fatal(err)
	}
	if got, want := fingerprint(t, root, true), fingerprint(t, writeRoot(t, m), true); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("files of the machine before are left")
	}
}

func TestForeignDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := machine(t, "a30-2").WriteDriverRoot(dir, ""); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("error %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory was changed: %v, %v", entries, err)
	}
}

func TestWriteDriverRootAtOnce(t *testing.T) {
	root, binary := filepath.Join(t.TempDir(), "root"), smallBinary(t)
	m := machine(t, "a30-2")
	errs := make(chan error)
	for range 4 {
		go func() { errs <- m.WriteDriverRoot(root, binary) }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestDeviceNodesNeedCapability drops CAP_MKNOD from one thread, which dies with its goroutine.
func TestDeviceNodesNeedCapability(t *testing.T) {
	m, dir := machine(t, "a30-2"), t.TempDir()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread must not be used again
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			result <- err
			return
		}
		result <- m.WriteDriverRoot(dir, "")
	}()
	if err := <-result; !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_MKNOD") {
		t.Errorf("error %v, want one that names the capability", err)
	}
}

func TestWriteDriverRootErrors(t *testing.T) {
	m := machine(t, "a30-2")
	dir := t.TempDir()
	if err := m.WriteDriverRoot(dir, filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "nvidia-smi") {
		t.Errorf("a binary that is missing: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.WriteDriverRoot(file, ""); err == nil || !strings.Contains(err.Error(), "a30-2") {
		t.Errorf("a root that is a file: %v", err)
	}
	root := filepath.Join(dir, "root")
	if err := m.WriteDriverRoot(root, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/nvidia-smi")); err == nil {
		t.Error("there is an nvidia-smi though none was asked for")
	}
}

// fingerprint maps each path below root to what it is; without content it holds inode and change time in its place.
func fingerprint(t *testing.T, root string, content bool) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("no stat of %s", path)
		}
		what := fmt.Sprintf("%s %d", info.Mode(), stat.Rdev)
		switch {
		case !content:
			what += fmt.Sprintf(" %d %v", stat.Ino, stat.Ctim)
		case entry.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " " + target
		case entry.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %x", sha256.Sum256(data))
		}
		name, err := filepath.Rel(root, path)
		found[name] = what
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
