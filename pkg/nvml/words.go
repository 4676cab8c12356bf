package nvml

import gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

// brandName gives NVML's brand in words, as nvml.h names it, or "" for one that is not known here.
func brandName(brand gonvml.BrandType) string {
	switch brand {
	case gonvml.BRAND_QUADRO:
		return "Quadro"
	case gonvml.BRAND_TESLA:
		return "Tesla"
	case gonvml.BRAND_NVS:
		return "NVS"
	case gonvml.BRAND_GRID:
		return "Grid"
	case gonvml.BRAND_GEFORCE:
		return "GeForce"
	case gonvml.BRAND_TITAN:
		return "Titan"
	case gonvml.BRAND_NVIDIA_VAPPS:
		return "NvidiaVApps"
	case gonvml.BRAND_NVIDIA_VPC:
		return "NvidiaVPC"
	case gonvml.BRAND_NVIDIA_VCS:
		return "NvidiaVCS"
	case gonvml.BRAND_NVIDIA_VWS:
		return "NvidiaVWS"
	case gonvml.BRAND_NVIDIA_CLOUD_GAMING:
		return "NvidiaCloudGaming"
	case gonvml.BRAND_QUADRO_RTX:
		return "QuadroRTX"
	case gonvml.BRAND_NVIDIA_RTX:
		return "NvidiaRTX"
	case gonvml.BRAND_NVIDIA:
		return "Nvidia"
	case gonvml.BRAND_GEFORCE_RTX:
		return "GeForceRTX"
	case gonvml.BRAND_TITAN_RTX:
		return "TitanRTX"
	default:
		return ""
	}
}

// architectureName gives the GPU generation in words, or "" for one that is not known here.
func architectureName(architecture gonvml.DeviceArchitecture) string {
	switch architecture {
	case gonvml.DEVICE_ARCH_KEPLER:
		return "Kepler"
	case gonvml.DEVICE_ARCH_MAXWELL:
		return "Maxwell"
	case gonvml.DEVICE_ARCH_PASCAL:
		return "Pascal"
	case gonvml.DEVICE_ARCH_VOLTA:
		return "Volta"
	case gonvml.DEVICE_ARCH_TURING:
		return "Turing"
	case gonvml.DEVICE_ARCH_AMPERE:
		return "Ampere"
	case gonvml.DEVICE_ARCH_ADA:
		return "Ada Lovelace"
	case gonvml.DEVICE_ARCH_HOPPER:
		return "Hopper"
	case gonvml.DEVICE_ARCH_BLACKWELL:
		return "Blackwell"
	case gonvml.DEVICE_ARCH_RUBIN:
		return "Rubin"
	default:
		return ""
	}
}
