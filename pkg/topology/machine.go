// Package topology holds the facts about one machine's GPUs and derives from them which GPUs belong together.
// It is pure: it reads no hardware, no files and no API server. pkg/nvml gathers the facts, pkg/inventory publishes them.
package topology

// Machine is what discovery saw of one node.
type Machine struct {
	// DriverVersion is the NVIDIA driver's version as NVML prints it, for example "550.163.01".
	DriverVersion string
	// CUDADriverVersion is the newest CUDA version that the driver supports, as MAJOR.MINOR, for example "12.4".
	CUDADriverVersion string
	// GPUs are sorted by Minor. A GPU that could not be read is not in the list.
	GPUs []GPU
}

// GPU is what discovery saw of one physical GPU. An unknown fact is the zero value, or nil where zero is a real value.
type GPU struct {
	// UUID is NVML's identity of the GPU, for example "GPU-8f6d3c1e-…".
	UUID string
	// Minor is the N of /dev/nvidiaN. It names the GPU's devices, because it does not move when another GPU is lost.
	Minor int
	// Index is NVML's enumeration index, the one that nvidia-smi prints. It moves when another GPU is lost.
	Index int
	// ProductName is NVML's name, for example "NVIDIA H100 80GB HBM3".
	ProductName string
	// Brand is NVML's brand in words, for example "Nvidia" or "Tesla".
	Brand string
	// Architecture is the GPU generation, for example "Hopper".
	Architecture string
	// CUDAComputeCapability is MAJOR.MINOR, for example "9.0".
	CUDAComputeCapability string
	// MemoryBytes is the framebuffer's total size.
	MemoryBytes uint64
	// ECCEnabled is nil where the product has no ECC.
	ECCEnabled *bool
	// VBIOS is the video BIOS version, for example "96.00.74.00.01".
	VBIOS string
	// PCI is the GPU's place on the PCI bus.
	PCI PCI
}

// PCI is a GPU's place in the machine, from NVML and PCI sysfs.
type PCI struct {
	// BusID is normalised to the kernel's form, for example "0000:18:00.0".
	BusID string
	// Root is the PCIe root complex, for example "pci0000:16".
	Root string
	// Switch is the bus id of the upstream port of the nearest PCIe switch, or "" when the GPU hangs on a root port.
	Switch string
	// NUMANode is nil when the kernel knows no affinity.
	NUMANode *int
	// CPUSocket is the physical package of the NUMA node's CPUs; nil when unknown.
	CPUSocket *int
}
