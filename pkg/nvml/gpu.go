package nvml

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/topology"
)

// readGPU reads one GPU. What it learns of the GPU's identity goes to ref at once, so that an error can name the GPU.
func (h *Hardware) readGPU(ctx context.Context, ref *gpuRef) (topology.GPU, error) {
	index := ref.index
	device, err := query(ctx, h, *ref, "DeviceGetHandleByIndex", func() (gonvml.Device, gonvml.Return) {
		return h.library.DeviceGetHandleByIndex(index)
	})
	if err != nil {
		return topology.GPU{}, err
	}
	gpu := topology.GPU{Index: index}
	for _, read := range []func(context.Context, gonvml.Device, *gpuRef, *topology.GPU) error{
		h.readIdentity, h.readMemory, h.readProduct,
	} {
		if err := read(ctx, device, ref, &gpu); err != nil {
			return topology.GPU{}, err
		}
	}
	h.readPlace(ctx, &gpu.PCI)
	return gpu, nil
}

// readIdentity reads what no GPU can do without: place, UUID, minor number and name.
func (h *Hardware) readIdentity(ctx context.Context, device gonvml.Device, ref *gpuRef, gpu *topology.GPU) error {
	pci, err := query(ctx, h, *ref, "GetPciInfo", device.GetPciInfo)
	if err != nil {
		return err
	}
	busID, err := kernelBusID(busIDText(pci))
	if err != nil {
		return fmt.Errorf("%s: GetPciInfo: %w (see nvidia-smi -q)", ref, err)
	}
	if ref.busID != busID {
		*ref = gpuRef{index: ref.index, count: ref.count, minor: -1, busID: busID} // not the GPU that was here before
	}
	gpu.PCI.BusID = busID
	if gpu.UUID, err = query(ctx, h, *ref, "GetUUID", device.GetUUID); err != nil {
		return err
	}
	if gpu.UUID == "" {
		return fmt.Errorf("%s: GetUUID: NVML knows no UUID (see nvidia-smi -L)", ref)
	}
	ref.uuid = gpu.UUID
	if gpu.Minor, err = query(ctx, h, *ref, "GetMinorNumber", device.GetMinorNumber); err != nil {
		return err
	}
	if gpu.Minor < 0 {
		return fmt.Errorf("%s: GetMinorNumber: %d is not the number of a device node (see ls /dev/nvidia*)", ref, gpu.Minor)
	}
	ref.minor = gpu.Minor
	if gpu.ProductName, err = query(ctx, h, *ref, "GetName", device.GetName); err != nil {
		return err
	}
	if gpu.ProductName == "" {
		return fmt.Errorf("%s: GetName: NVML knows no product name (see nvidia-smi -L)", ref)
	}
	return nil
}

func (h *Hardware) readMemory(ctx context.Context, device gonvml.Device, ref *gpuRef, gpu *topology.GPU) error {
	memory, err := query(ctx, h, *ref, "GetMemoryInfo", device.GetMemoryInfo)
	if err != nil {
		return err
	}
	if memory.Total == 0 {
		return fmt.Errorf("%s: GetMemoryInfo: NVML reports no memory (see nvidia-smi -q)", ref)
	}
	gpu.MemoryBytes = memory.Total
	return nil
}

// readProduct reads facts that a GPU may lack.
func (h *Hardware) readProduct(ctx context.Context, device gonvml.Device, ref *gpuRef, gpu *topology.GPU) error {
	brand, brandErr := query(ctx, h, *ref, "GetBrand", device.GetBrand)
	if brandErr == nil {
		gpu.Brand = brandName(brand)
	}
	architecture, architectureErr := query(ctx, h, *ref, "GetArchitecture", device.GetArchitecture)
	if architectureErr == nil {
		gpu.Architecture = architectureName(architecture)
	}
	capability, capabilityErr := query(ctx, h, *ref, "GetCudaComputeCapability", func() (string, gonvml.Return) {
		major, minor, ret := device.GetCudaComputeCapability()
		return fmt.Sprintf("%d.%d", major, minor), ret
	})
	if capabilityErr == nil {
		gpu.CUDAComputeCapability = capability
	}
	ecc, eccErr := query(ctx, h, *ref, "GetEccMode", func() (gonvml.EnableState, gonvml.Return) {
		current, _, ret := device.GetEccMode()
		return current, ret
	})
	if eccErr == nil {
		enabled := ecc == gonvml.FEATURE_ENABLED
		gpu.ECCEnabled = &enabled
	}
	vbios, vbiosErr := query(ctx, h, *ref, "GetVbiosVersion", device.GetVbiosVersion)
	if vbiosErr == nil {
		gpu.VBIOS = vbios
	}
	for _, err := range []error{brandErr, architectureErr, capabilityErr, eccErr, vbiosErr} {
		switch {
		case err == nil:
		case unusable(err):
			return err
		case errors.Is(err, gonvml.ERROR_NOT_SUPPORTED), errors.Is(err, gonvml.ERROR_FUNCTION_NOT_FOUND):
			klog.FromContext(ctx).V(4).Info("The GPU lacks a fact", "reason", err.Error())
		default:
			klog.FromContext(ctx).V(2).Info("A fact about a GPU could not be read and is left out", "reason", err.Error())
		}
	}
	return nil
}

// unusable reports whether an error is about the whole GPU, or the whole library, and not only about the fact that was asked for.
func unusable(err error) bool {
	return errors.Is(err, ErrHung) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || needsInit(err) ||
		errors.Is(err, gonvml.ERROR_GPU_IS_LOST) || errors.Is(err, gonvml.ERROR_RESET_REQUIRED)
}

// busIDText is the bus id as NVML prints it, for example "00000000:1B:00.0".
func busIDText(pci gonvml.PciInfo) string {
	var text strings.Builder
	for _, char := range pci.BusId {
		if char == 0 {
			break
		}
		text.WriteByte(byte(char))
	}
	return text.String()
}

// kernelBusID gives a bus id the form that the kernel uses in sysfs: "00000000:1B:00.0" becomes "0000:1b:00.0".
func kernelBusID(text string) (string, error) {
	domain, rest, found := strings.Cut(text, ":")
	bus, rest, found2 := strings.Cut(rest, ":")
	device, function, found3 := strings.Cut(rest, ".")
	if found && found2 && found3 {
		var numbers [4]uint64
		var errs [4]error
		numbers[0], errs[0] = strconv.ParseUint(domain, 16, 32)
		numbers[1], errs[1] = strconv.ParseUint(bus, 16, 8)
		numbers[2], errs[2] = strconv.ParseUint(device, 16, 5) // 32 devices on a bus
		numbers[3], errs[3] = strconv.ParseUint(function, 16, 3)
		if errors.Join(errs[:]...) == nil {
			return fmt.Sprintf("%04x:%02x:%02x.%x", numbers[0], numbers[1], numbers[2], numbers[3]), nil
		}
	}
	return "", fmt.Errorf("%q is not a PCI bus id: want the form 00000000:1B:00.0", text)
}
