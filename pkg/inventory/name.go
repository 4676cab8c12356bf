package inventory

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind is what a device gives access to. It is the device's attribute "type".
type Kind string

const (
	// KindGPU is a whole GPU, for one claim at a time.
	KindGPU Kind = "gpu"
	// KindMonitor is a look at a GPU that others use; for requests with adminAccess only.
	KindMonitor Kind = "monitor"
)

// Ref is what a device's name says.
type Ref struct {
	Kind Kind
	// Minor is the N of the GPU's /dev/nvidiaN.
	Minor int
}

const (
	namePrefix    = "gpu-"
	monitorSuffix = "-monitor"
)

// DeviceName names the device of a kind on the GPU with that minor number: "gpu-3", "gpu-3-monitor". For a minor number that is not
// negative it is a DNS label, as the API wants, and ParseDeviceName reads it back.
func DeviceName(kind Kind, minor int) string {
	name := namePrefix + strconv.Itoa(minor)
	if kind == KindMonitor {
		name += monitorSuffix
	}
	return name
}

// ParseDeviceName reads a name that DeviceName made, and no other.
func ParseDeviceName(name string) (Ref, error) {
	ref := Ref{Kind: KindGPU}
	number, isMonitor := strings.CutSuffix(name, monitorSuffix)
	if isMonitor {
		ref.Kind = KindMonitor
	}
	minor, err := strconv.ParseUint(strings.TrimPrefix(number, namePrefix), 10, 31)
	ref.Minor = int(minor)
	if err != nil || DeviceName(ref.Kind, ref.Minor) != name {
		return Ref{}, fmt.Errorf("%q is not the name of a device of this driver: want gpu-<minor> or gpu-<minor>-monitor, for example gpu-3", name)
	}
	return ref, nil
}
