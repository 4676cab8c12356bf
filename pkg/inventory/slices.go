package inventory

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"tessera.dev/tessera/pkg/topology"
)

// DevicesPerSlice is how many devices go into one slice. The API takes 128 of the plainest devices, but 64 as soon as one of them
// has a taint, and a taint must not be what makes a node's slices invalid.
const DevicesPerSlice = 64

// Slice is the content of one ResourceSlice; whoever publishes it adds names, node and pool.
type Slice struct {
	SharedCounters []resourceapi.CounterSet
	Devices        []resourceapi.Device
}

// Slices lists the machine's devices: whole GPUs by minor number, then the monitors in the same order, in slices of at most
// DevicesPerSlice devices. A machine without GPUs has one slice without devices, so that its pool exists. The machine is not changed.
//
// Names must be unique within a pool, so of several GPUs with one minor number only the first by UUID is listed, and none without
// a minor number; discovery gives neither.
func Slices(m topology.Machine) []Slice {
	gpus := slices.DeleteFunc(slices.Clone(m.GPUs), func(g topology.GPU) bool { return g.Minor < 0 })
	slices.SortFunc(gpus, func(a, b topology.GPU) int {
		return cmp.Or(cmp.Compare(a.Minor, b.Minor), cmp.Compare(a.UUID, b.UUID))
	})
	gpus = slices.CompactFunc(gpus, func(a, b topology.GPU) bool { return a.Minor == b.Minor })

	devices := make([]resourceapi.Device, 0, 2*len(gpus))
	for _, kind := range []Kind{KindGPU, KindMonitor} {
		for _, gpu := range gpus {
			devices = append(devices, device(kind, m, gpu))
		}
	}
	result := make([]Slice, 0, 1+len(devices)/DevicesPerSlice)
	for chunk := range slices.Chunk(devices, DevicesPerSlice) {
		result = append(result, Slice{Devices: chunk})
	}
	if len(result) == 0 {
		result = append(result, Slice{})
	}
	return result
}
