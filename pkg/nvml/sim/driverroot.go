package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"tessera.dev/tessera/pkg/nvml/sim/internal/smi"
)

// The character devices have the majors and minors of the real driver; nvidia-uvm has no fixed major, and 510 is one that
// the kernel leaves to dynamic use.
const (
	nvidiaMajor  = 195
	modesetMinor = 254
	controlMinor = 255
	uvmMajor     = 510
)

const (
	libraryDir = "usr/lib/x86_64-linux-gnu"
	// markerFile tells a driver root that the simulator wrote, and may change, from any other directory. It is also the lock.
	markerFile = ".tessera-simulated-driver-root"
)

// WriteDriverRoot writes what a machine with the NVIDIA driver has on disk below dir: device nodes in dev/, libraries and nvidia-smi
// in usr/, and the parts of /proc and /sys that tell of the GPUs. nvidiaSMI is the static binary that becomes
// usr/bin/nvidia-smi; empty leaves it out. The content depends on the profile and the seed only: what is already right is
// not touched, and what another machine left there goes away. Faults do not change it. Several processes may call it at once.
//
// dir must be new, empty, or a driver root that this function wrote. Making device nodes needs root (CAP_MKNOD).
func (m *Machine) WriteDriverRoot(dir, nvidiaSMI string) error {
	unlock, err := ownDir(dir)
	if err != nil {
		return fmt.Errorf("write the driver root of the simulated machine %s: %w", m.profile.Name, err)
	}
	defer unlock()
	t := &tree{root: dir, written: map[string]bool{".": true, markerFile: true}}
	m.writeDevices(t)
	m.writeLibraries(t)
	m.writeProc(t)
	m.writeSysfs(t)
	if nvidiaSMI != "" {
		data, err := os.ReadFile(nvidiaSMI)
		if err != nil {
			return fmt.Errorf("write the driver root: read the simulated nvidia-smi: %w", err)
		}
		t.file("usr/bin/nvidia-smi", data, 0o755)
	}
	t.prune()
	if t.err != nil {
		return fmt.Errorf("write the driver root of the simulated machine %s: %w", m.profile.Name, t.err)
	}
	return nil
}

func (m *Machine) writeDevices(t *tree) {
	for _, g := range m.gpus {
		t.device(fmt.Sprintf("dev/nvidia%d", g.facts.Minor), nvidiaMajor, uint32(g.facts.Minor))
	}
	t.device("dev/nvidiactl", nvidiaMajor, controlMinor)
	t.device("dev/nvidia-modeset", nvidiaMajor, modesetMinor)
	t.device("dev/nvidia-uvm", uvmMajor, 0)
	t.device("dev/nvidia-uvm-tools", uvmMajor, 1)
}

func (m *Machine) writeLibraries(t *tree) {
	table := smi.Table{DriverVersion: m.profile.DriverVersion, CUDAVersion: m.profile.CUDADriverVersion}
	for i, g := range m.gpus {
		table.GPUs = append(table.GPUs, smi.GPU{
			Minor: g.facts.Minor, Index: i, UUID: g.uuid, Name: m.profile.Product.Name,
			BusID: g.nvmlBusID(), MemoryMiB: m.profile.Product.MemoryMiB,
		})
	}
	data, err := table.Encode()
	if err != nil {
		t.err = err
		return
	}
	version := m.profile.DriverVersion
	for name, content := range map[string][]byte{
		"libnvidia-ml.so": data,
		"libcuda.so":      fmt.Appendf(nil, "a simulated libcuda of driver %s: it cannot be loaded\n", version),
	} {
		t.file(filepath.Join(libraryDir, name+"."+version), content, 0o644)
		t.link(filepath.Join(libraryDir, name+".1"), name+"."+version)
	}
}

func (m *Machine) writeProc(t *tree) {
	version := m.profile.DriverVersion
	t.file("proc/driver/nvidia/version",
		fmt.Appendf(nil, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  (simulated by Tessera)\n", version), 0o444)
	t.file("proc/driver/nvidia/params", []byte("DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nModifyDeviceFiles: 1\n"), 0o444)
	for _, g := range m.gpus {
		var text strings.Builder
		fmt.Fprintf(&text, "Model: \t\t %s\n", m.profile.Product.Name)
		fmt.Fprintf(&text, "GPU UUID: \t %s\n", g.uuid)
		fmt.Fprintf(&text, "Video BIOS: \t %s\n", strings.ToLower(m.profile.Product.VBIOS))
		fmt.Fprintf(&text, "Bus Type: \t PCIe\n")
		fmt.Fprintf(&text, "Bus Location: \t %s\n", g.facts.BusID)
		fmt.Fprintf(&text, "Device Minor: \t %d\n", g.facts.Minor)
		t.file(filepath.Join("proc/driver/nvidia/gpus", g.facts.BusID, "information"), []byte(text.String()), 0o444)
	}
}

func (m *Machine) writeSysfs(t *tree) {
	for node, facts := range m.profile.NUMANodes {
		nodeDir := fmt.Sprintf("sys/devices/system/node/node%d", node)
		t.file(filepath.Join(nodeDir, "cpulist"), []byte(facts.CPUs+"\n"), 0o444)
		t.file(filepath.Join(nodeDir, "distance"), m.distances(node), 0o444)
		cpus, err := parseCPUs(facts.CPUs)
		if err != nil {
			t.err = errors.Join(t.err, err)
			return
		}
		for _, cpu := range cpus {
			cpuDir := fmt.Sprintf("sys/devices/system/cpu/cpu%d", cpu)
			t.file(filepath.Join(cpuDir, "topology/physical_package_id"), []byte(strconv.Itoa(facts.Socket)+"\n"), 0o444)
			t.link(filepath.Join(cpuDir, fmt.Sprintf("node%d", node)), fmt.Sprintf("../../node/node%d", node))
		}
	}
	product := m.profile.Product
	for _, g := range m.gpus {
		node := -1 // the kernel's word for no affinity
		if g.facts.NUMANode != nil {
			node = *g.facts.NUMANode
		}
		dir := filepath.Join("devices", g.facts.Root)
		for _, bridge := range g.facts.Bridges {
			dir = filepath.Join(dir, bridge)
			t.pciDevice(dir, "0x060400", "0x8086", "0x0000", node)
		}
		dir = filepath.Join(dir, g.facts.BusID)
		t.pciDevice(dir, displayClass3D, fmt.Sprintf("0x%04x", nvidiaVendorID), fmt.Sprintf("0x%04x", product.PCIDeviceID>>16), node)
	}
}

// distances is a node's row of the kernel's table: 10 to itself, 12 within a socket, 21 to another.
func (m *Machine) distances(from int) []byte {
	var row []string
	for to, node := range m.profile.NUMANodes {
		switch {
		case to == from:
			row = append(row, "10")
		case node.Socket == m.profile.NUMANodes[from].Socket:
			row = append(row, "12")
		default:
			row = append(row, "21")
		}
	}
	return []byte(strings.Join(row, " ") + "\n")
}
