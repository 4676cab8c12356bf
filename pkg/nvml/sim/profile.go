package sim

import (
	"embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

//go:embed profiles/*.yaml
var profileFiles embed.FS

// Profile is one machine: a driver, one GPU product, NUMA nodes and the GPUs' places on the PCI bus.
// ParseProfile and LoadProfile give valid ones only.
type Profile struct {
	// Name identifies the machine's kind, for example "dgx-h100". The GPUs' UUIDs depend on it.
	Name string
	// DriverVersion is what NVML prints, for example "550.163.01".
	DriverVersion string
	// NVMLVersion is the CUDA generation and the driver version, for example "12.550.163.01".
	NVMLVersion string
	// CUDADriverVersion is MAJOR.MINOR, for example "12.4".
	CUDADriverVersion string
	// Product is what all GPUs of the machine are.
	Product Product
	// Fabric is the multi-node NVLink domain, nil where the machine has none.
	Fabric *Fabric
	// NUMANodes are the machine's memory nodes; a node's number is its index.
	NUMANodes []NUMANode
	// GPUs are in the order in which NVML enumerates them.
	GPUs []GPU
}

// Product is the facts of a GPU model.
type Product struct {
	// Name is NVML's name, for example "NVIDIA H100 80GB HBM3".
	Name string
	// Brand is NVML's brand.
	Brand nvml.BrandType
	// Architecture is the GPU's generation.
	Architecture nvml.DeviceArchitecture
	// ComputeMajor and ComputeMinor are the CUDA compute capability.
	ComputeMajor, ComputeMinor int
	// MemoryMiB is the size of the framebuffer as NVML reports it.
	MemoryMiB uint64
	// PCIDeviceID holds the device id in the upper and the vendor id in the lower 16 bits, as NVML has it.
	PCIDeviceID uint32
	// PCISubsystemID has the same form; 0 where it is not known.
	PCISubsystemID uint32
	// VBIOS is the video BIOS version.
	VBIOS string
	// ECC is nil where the product has no ECC memory, else whether it is on.
	ECC *bool
	// MaxMIGDevices is how many MIG instances a GPU can be cut into; 0 where the product has no MIG.
	MaxMIGDevices int
}

// Fabric names the multi-node NVLink domain that the machine's GPUs are in.
type Fabric struct {
	// ClusterUUID is the same on all nodes of the domain.
	ClusterUUID [16]byte
	// CliqueID numbers the partition of the domain.
	CliqueID uint32
}

// NUMANode is one memory node and its CPUs.
type NUMANode struct {
	// Socket is the physical package of the node's CPUs.
	Socket int
	// CPUs is the kernel's list form, for example "0-55,112-167".
	CPUs string
}

// GPU is one card's place in the machine.
type GPU struct {
	// Minor is the N of /dev/nvidiaN.
	Minor int
	// Root is the PCIe root complex, for example "pci0000:15".
	Root string
	// Bridges are the bus ids from the root port down to the port above the GPU: the root port, then for each PCIe switch its
	// upstream and its downstream port.
	Bridges []string
	// BusID is the GPU's own, in the kernel's form, for example "0000:1b:00.0".
	BusID string
	// NUMANode is nil where the firmware tells no affinity.
	NUMANode *int
}

// ProfileNames lists the machines that the package carries, sorted.
func ProfileNames() []string {
	entries, err := profileFiles.ReadDir("profiles")
	if err != nil {
		return nil // the directory is part of the binary
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// LoadProfile reads a profile: a file where the argument holds a slash or ends in .yaml, else one of ProfileNames.
func LoadProfile(nameOrPath string) (*Profile, error) {
	if strings.Contains(nameOrPath, "/") || strings.HasSuffix(nameOrPath, ".yaml") {
		data, err := os.ReadFile(nameOrPath)
		if err != nil {
			return nil, fmt.Errorf("read the machine profile: %w", err)
		}
		return ParseProfile(data, filepath.Base(nameOrPath))
	}
	if !slices.Contains(ProfileNames(), nameOrPath) {
		return nil, fmt.Errorf("no machine profile %q: give a file (./my.yaml) or one of %s", nameOrPath, strings.Join(ProfileNames(), ", "))
	}
	file := nameOrPath + ".yaml"
	data, err := profileFiles.ReadFile(path.Join("profiles", file))
	if err != nil {
		return nil, fmt.Errorf("read the machine profile %q: %w", nameOrPath, err)
	}
	return ParseProfile(data, file)
}
