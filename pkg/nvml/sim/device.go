package sim

import (
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

const (
	mebibyte = 1 << 20
	// reservedMiB is what the driver keeps of the framebuffer for itself; NVML's second memory structure shows it.
	reservedMiB = 512
	// displayClass3D is the PCI class of a data centre GPU, as sysfs prints it.
	displayClass3D = "0x030200"
)

// newHandle gives a handle that is good until the GPU is lost.
func (g *gpu) newHandle() nvml.Device {
	handle := &mock.Device{}
	copyFuncs(handle, g.funcs)
	return handle
}

// newFuncs makes the functions that all handles of the GPU share.
func (g *gpu) newFuncs() *mock.Device {
	funcs := g.implemented()
	instrument(funcs, g.gate, nil)
	return funcs
}

// has reports whether the GPU simulates a function of NVML's devices.
func (g *gpu) has(method string) bool {
	return slices.Contains(setFuncs(g.implemented()), method)
}

// implemented is the part of NVML's device functions that the simulator has.
func (g *gpu) implemented() *mock.Device {
	product := g.machine.profile.Product
	return &mock.Device{
		GetUUIDFunc:         func() (string, nvml.Return) { return g.uuid, nvml.SUCCESS },
		GetNameFunc:         func() (string, nvml.Return) { return product.Name, nvml.SUCCESS },
		GetBrandFunc:        func() (nvml.BrandType, nvml.Return) { return product.Brand, nvml.SUCCESS },
		GetArchitectureFunc: func() (nvml.DeviceArchitecture, nvml.Return) { return product.Architecture, nvml.SUCCESS },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) {
			return product.ComputeMajor, product.ComputeMinor, nvml.SUCCESS
		},
		GetMinorNumberFunc:  func() (int, nvml.Return) { return g.facts.Minor, nvml.SUCCESS },
		GetIndexFunc:        g.index,
		GetVbiosVersionFunc: func() (string, nvml.Return) { return product.VBIOS, nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			total := product.MemoryMiB * mebibyte
			used := min(reservedMiB*mebibyte, total)
			return nvml.Memory{Total: total, Used: used, Free: total - used}, nvml.SUCCESS
		},
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			total := product.MemoryMiB * mebibyte
			reserved := min(reservedMiB*mebibyte, total)
			memory := nvml.Memory_v2{Total: total, Reserved: reserved, Free: total - reserved}
			memory.Version = nvml.STRUCT_VERSION(memory, 2)
			return memory, nvml.SUCCESS
		},
		GetPciInfoFunc:           g.pciInfo,
		GetEccModeFunc:           g.eccMode,
		GetMigModeFunc:           g.migMode,
		SetMigModeFunc:           g.setMIGMode,
		GetMaxMigDeviceCountFunc: func() (int, nvml.Return) { return product.MaxMIGDevices, nvml.SUCCESS },
		GetMigDeviceHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) {
			return nil, nvml.ERROR_NOT_FOUND // MIG is off
		},
		IsMigDeviceHandleFunc:      func() (bool, nvml.Return) { return false, nvml.SUCCESS },
		GetGpuFabricInfoFunc:       g.fabricInfo,
		GetSupportedEventTypesFunc: func() (uint64, nvml.Return) { return supportedEvents, nvml.SUCCESS },
		RegisterEventsFunc: func(types uint64, set nvml.EventSet) nvml.Return {
			if set == nil {
				return nvml.ERROR_INVALID_ARGUMENT
			}
			if types&^supportedEvents != 0 {
				return nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.SUCCESS
		},
	}
}

const supportedEvents = uint64(nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeXidCriticalError)

// gate decides what a call on the GPU meets before it does its work.
func (g *gpu) gate(call string) nvml.Return {
	if !g.machine.initialised() {
		return nvml.ERROR_UNINITIALIZED
	}
	ret := g.machine.meet(func(f Fault) bool {
		return (f.Minor == AnyMinor || f.Minor == g.facts.Minor) && onCall(f, call)
	})
	if ret != nvml.SUCCESS {
		return ret
	}
	return g.lost()
}

// lost returns ERROR_GPU_IS_LOST for a GPU that is off the bus, missing ones included: an old handle of those is as dead.
func (g *gpu) lost() nvml.Return {
	faults, err := g.machine.state.Faults()
	if err != nil {
		return nvml.ERROR_UNKNOWN
	}
	for _, f := range faults {
		if f.Minor == g.facts.Minor && (f.Kind == FaultLost || f.Kind == FaultMissing) {
			return nvml.ERROR_GPU_IS_LOST
		}
	}
	return nvml.SUCCESS
}

func (g *gpu) index() (int, nvml.Return) {
	present, ret := g.machine.enumerated()
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	if i := slices.Index(present, g); i >= 0 {
		return i, nvml.SUCCESS
	}
	return 0, nvml.ERROR_GPU_IS_LOST
}

func (g *gpu) pciInfo() (nvml.PciInfo, nvml.Return) {
	product := g.machine.profile.Product
	info := nvml.PciInfo{PciDeviceId: product.PCIDeviceID, PciSubSystemId: product.PCISubsystemID}
	copyChars(info.BusId[:], g.nvmlBusID())
	copyChars(info.BusIdLegacy[:], g.nvmlBusID()[4:])
	for _, part := range []struct {
		from, to int
		into     *uint32
	}{{0, 4, &info.Domain}, {5, 7, &info.Bus}, {8, 10, &info.Device}} {
		value, err := strconv.ParseUint(g.facts.BusID[part.from:part.to], 16, 32)
		if err != nil {
			return nvml.PciInfo{}, nvml.ERROR_UNKNOWN
		}
		*part.into = uint32(value)
	}
	return info, nvml.SUCCESS
}

// copyChars fills a C string, whose last byte stays zero.
func copyChars(to []int8, text string) {
	for i := range min(len(text), len(to)-1) {
		to[i] = int8(text[i])
	}
}

func (g *gpu) eccMode() (current, pending nvml.EnableState, ret nvml.Return) {
	ecc := g.machine.profile.Product.ECC
	switch {
	case ecc == nil:
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	case *ecc:
		return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
	default:
		return nvml.FEATURE_DISABLED, nvml.FEATURE_DISABLED, nvml.SUCCESS
	}
}

func (g *gpu) migMode() (current, pending int, ret nvml.Return) {
	if g.machine.profile.Product.MaxMIGDevices == 0 {
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS
}

// setMIGMode accepts what is already so: the simulator cannot cut GPUs.
func (g *gpu) setMIGMode(mode int) (activation, ret nvml.Return) {
	if g.machine.profile.Product.MaxMIGDevices == 0 || mode == nvml.DEVICE_MIG_ENABLE {
		return nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED
	}
	if mode != nvml.DEVICE_MIG_DISABLE {
		return nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_INVALID_ARGUMENT
	}
	return nvml.SUCCESS, nvml.SUCCESS
}

func (g *gpu) fabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	fabric := g.machine.profile.Fabric
	if fabric == nil {
		return nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED}, nvml.SUCCESS
	}
	return nvml.GpuFabricInfo{
		ClusterUuid: fabric.ClusterUUID,
		CliqueId:    fabric.CliqueID,
		State:       nvml.GPU_FABRIC_STATE_COMPLETED,
		Status:      uint32(nvml.SUCCESS),
	}, nvml.SUCCESS
}
