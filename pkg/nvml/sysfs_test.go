package nvml_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"tessera.dev/tessera/pkg/topology"
)

// The first GPU of the profile that these tests use.
const gpuBusID = "0000:1b:00.0"

// pciPlace is a place on the PCI bus in sysfs, and what must be read from it.
type pciPlace struct {
	path  string // below sysfs, without the GPU
	numa  string // content of numa_node; empty means that there is no such file
	files map[string]string
	want  topology.PCI
}

func pciPlaces() map[string]pciPlace {
	number := func(n int) *int { return &n }
	node0 := map[string]string{
		"devices/system/node/node0/cpulist":                    "4-7,12\n",
		"devices/system/cpu/cpu4/topology/physical_package_id": "1\n",
	}
	return map[string]pciPlace{
		"no sysfs": {},
		"root port only": {
			path: "devices/pci0000:1a/0000:1a:01.0", numa: "0\n", files: node0,
			want: topology.PCI{Root: "pci0000:1a", NUMANode: number(0), CPUSocket: number(1)},
		},
		"no port, as in a virtual machine": {
			path: "devices/pci0000:00", numa: "-1\n", files: node0,
			want: topology.PCI{Root: "pci0000:00"},
		},
		"one switch": {
			path: "devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0", numa: "0\n", files: node0,
			want: topology.PCI{Root: "pci0000:16", Switch: "0000:17:00.0", NUMANode: number(0), CPUSocket: number(1)},
		},
		"a switch below a switch": {
			path: "devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0/0000:1a:08.0",
			want: topology.PCI{Root: "pci0000:16", Switch: "0000:19:00.0"},
		},
		"a lone bridge below the root port": {
			path: "devices/pci0000:16/0000:16:01.0/0000:17:00.0",
			want: topology.PCI{Root: "pci0000:16"},
		},
		"a path that is no PCI path": {path: "devices/platform/bus", numa: "0\n", want: topology.PCI{NUMANode: number(0)}},
		"a node without CPUs": {
			path: "devices/pci0000:16/0000:16:01.0", numa: "2\n",
			files: map[string]string{"devices/system/node/node2/cpulist": "\n"},
			want:  topology.PCI{Root: "pci0000:16", NUMANode: number(2)},
		},
		"a package that the kernel does not know": {
			path: "devices/pci0000:16/0000:16:01.0", numa: "0\n",
			files: map[string]string{
				"devices/system/node/node0/cpulist":                    "0\n",
				"devices/system/cpu/cpu0/topology/physical_package_id": "-1\n",
			},
			want: topology.PCI{Root: "pci0000:16", NUMANode: number(0)},
		},
		"nonsense": {
			path: "devices/pci0000:16/0000:16:01.0", numa: "zero",
			files: map[string]string{"devices/system/node/node0/cpulist": "all\n"},
			want:  topology.PCI{Root: "pci0000:16"},
		},
		"nonsense in the list of CPUs": {
			path: "devices/pci0000:16/0000:16:01.0", numa: "0",
			files: map[string]string{"devices/system/node/node0/cpulist": "all\n"},
			want:  topology.PCI{Root: "pci0000:16", NUMANode: number(0)},
		},
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for name, test := range pciPlaces() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sysfs := t.TempDir()
			for file, content := range test.files {
				write(t, filepath.Join(sysfs, file), content)
			}
			if test.path != "" {
				link(t, sysfs, filepath.Join(test.path, gpuBusID), test.numa)
			}
			_, library := simulate(t, "dgx-h100")
			hardware := openAt(t, library, sysfs)
			defer closeHardware(t, hardware)
			machine, failures := discover(t, hardware)
			wantFound(t, machine, failures, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil)
			test.want.BusID = gpuBusID
			if got := machine.GPUs[0].PCI; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %s, want %s", place(got), place(test.want))
			}
		})
	}
}

func place(p topology.PCI) string {
	return describe(topology.Machine{GPUs: []topology.GPU{{PCI: p}}})
}

// link makes the directory of a PCI device and the link to it by its bus id.
func link(t *testing.T, sysfs, device, numaNode string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(sysfs, device), 0o755); err != nil {
		t.Fatal(err)
	}
	if numaNode != "" {
		write(t, filepath.Join(sysfs, device, "numa_node"), numaNode)
	}
	byID := filepath.Join(sysfs, "bus/pci/devices")
	if err := os.MkdirAll(byID, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join("../../..", device), filepath.Join(byID, filepath.Base(device))); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
