package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const nvidiaVendorID = 0x10de

// brands are the words that profiles use, which are go-nvlib's, for the brands that data centre cards have.
var brands = map[string]nvml.BrandType{
	"GeForce":    nvml.BRAND_GEFORCE,
	"GeForceRTX": nvml.BRAND_GEFORCE_RTX,
	"Nvidia":     nvml.BRAND_NVIDIA,
	"NvidiaRTX":  nvml.BRAND_NVIDIA_RTX,
	"Quadro":     nvml.BRAND_QUADRO,
	"QuadroRTX":  nvml.BRAND_QUADRO_RTX,
	"Tesla":      nvml.BRAND_TESLA,
	"Titan":      nvml.BRAND_TITAN,
}

// architectures are the words that profiles use.
var architectures = map[string]nvml.DeviceArchitecture{
	"Pascal":       nvml.DEVICE_ARCH_PASCAL,
	"Volta":        nvml.DEVICE_ARCH_VOLTA,
	"Turing":       nvml.DEVICE_ARCH_TURING,
	"Ampere":       nvml.DEVICE_ARCH_AMPERE,
	"Ada Lovelace": nvml.DEVICE_ARCH_ADA,
	"Hopper":       nvml.DEVICE_ARCH_HOPPER,
	"Blackwell":    nvml.DEVICE_ARCH_BLACKWELL,
}

// returns names NVML's results as nvml.h does, without the NVML_ in front.
var returns = map[nvml.Return]string{
	nvml.SUCCESS:                         "SUCCESS",
	nvml.ERROR_UNINITIALIZED:             "ERROR_UNINITIALIZED",
	nvml.ERROR_INVALID_ARGUMENT:          "ERROR_INVALID_ARGUMENT",
	nvml.ERROR_NOT_SUPPORTED:             "ERROR_NOT_SUPPORTED",
	nvml.ERROR_NO_PERMISSION:             "ERROR_NO_PERMISSION",
	nvml.ERROR_ALREADY_INITIALIZED:       "ERROR_ALREADY_INITIALIZED",
	nvml.ERROR_NOT_FOUND:                 "ERROR_NOT_FOUND",
	nvml.ERROR_INSUFFICIENT_SIZE:         "ERROR_INSUFFICIENT_SIZE",
	nvml.ERROR_INSUFFICIENT_POWER:        "ERROR_INSUFFICIENT_POWER",
	nvml.ERROR_DRIVER_NOT_LOADED:         "ERROR_DRIVER_NOT_LOADED",
	nvml.ERROR_TIMEOUT:                   "ERROR_TIMEOUT",
	nvml.ERROR_IRQ_ISSUE:                 "ERROR_IRQ_ISSUE",
	nvml.ERROR_LIBRARY_NOT_FOUND:         "ERROR_LIBRARY_NOT_FOUND",
	nvml.ERROR_FUNCTION_NOT_FOUND:        "ERROR_FUNCTION_NOT_FOUND",
	nvml.ERROR_CORRUPTED_INFOROM:         "ERROR_CORRUPTED_INFOROM",
	nvml.ERROR_GPU_IS_LOST:               "ERROR_GPU_IS_LOST",
	nvml.ERROR_RESET_REQUIRED:            "ERROR_RESET_REQUIRED",
	nvml.ERROR_OPERATING_SYSTEM:          "ERROR_OPERATING_SYSTEM",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH:   "ERROR_LIB_RM_VERSION_MISMATCH",
	nvml.ERROR_IN_USE:                    "ERROR_IN_USE",
	nvml.ERROR_MEMORY:                    "ERROR_MEMORY",
	nvml.ERROR_NO_DATA:                   "ERROR_NO_DATA",
	nvml.ERROR_VGPU_ECC_NOT_SUPPORTED:    "ERROR_VGPU_ECC_NOT_SUPPORTED",
	nvml.ERROR_INSUFFICIENT_RESOURCES:    "ERROR_INSUFFICIENT_RESOURCES",
	nvml.ERROR_FREQ_NOT_SUPPORTED:        "ERROR_FREQ_NOT_SUPPORTED",
	nvml.ERROR_ARGUMENT_VERSION_MISMATCH: "ERROR_ARGUMENT_VERSION_MISMATCH",
	nvml.ERROR_DEPRECATED:                "ERROR_DEPRECATED",
	nvml.ERROR_NOT_READY:                 "ERROR_NOT_READY",
	nvml.ERROR_GPU_NOT_FOUND:             "ERROR_GPU_NOT_FOUND",
	nvml.ERROR_INVALID_STATE:             "ERROR_INVALID_STATE",
	nvml.ERROR_RESET_TYPE_NOT_SUPPORTED:  "ERROR_RESET_TYPE_NOT_SUPPORTED",
	nvml.ERROR_UNKNOWN:                   "ERROR_UNKNOWN",
}

// ReturnName is the name of an NVML result, for example "ERROR_GPU_IS_LOST", or its number where nvml.h has no name.
func ReturnName(r nvml.Return) string {
	if name, ok := returns[r]; ok {
		return name
	}
	return strconv.Itoa(int(r))
}

// ParseReturn reads what ReturnName gives. The NVML_ of nvml.h may be in front.
func ParseReturn(name string) (nvml.Return, error) {
	plain := strings.TrimPrefix(name, "NVML_")
	for value, known := range returns {
		if known == plain {
			return value, nil
		}
	}
	if number, err := strconv.ParseInt(name, 10, 32); err == nil {
		return nvml.Return(number), nil
	}
	return 0, fmt.Errorf("%q is not a result of NVML: want a name as ERROR_UNKNOWN", name)
}

// parseCPUs reads the kernel's list form, for example "0-3,8,10-11". An empty list is for a node that has memory only.
func parseCPUs(list string) ([]int, error) {
	if list == "" {
		return nil, nil
	}
	var cpus []int
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		low, err := strconv.ParseUint(first, 10, 16)
		high := low
		if err == nil && isRange {
			high, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil || high < low || high > maxCPU {
			return nil, fmt.Errorf("%q is not a CPU or a range of CPUs (0 to %d)", part, maxCPU)
		}
		if len(cpus)+int(high-low) > maxCPU {
			return nil, errors.New("too many CPUs")
		}
		for cpu := low; cpu <= high; cpu++ {
			cpus = append(cpus, int(cpu))
		}
	}
	return cpus, nil
}
