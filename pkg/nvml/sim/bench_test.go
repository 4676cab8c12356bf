package sim_test

import (
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml/sim"
)

// BenchmarkCall is one NVML call on a machine whose state is a file, which is what every call of the driver costs here.
func BenchmarkCall(b *testing.B) {
	p, err := sim.LoadProfile("dgx-h100")
	if err != nil {
		b.Fatal(err)
	}
	m, err := sim.New(p, sim.Options{StateFile: filepath.Join(b.TempDir(), "state.json")})
	if err != nil {
		b.Fatal(err)
	}
	if err := m.Inject(sim.Fault{Kind: sim.FaultLost, Minor: 7}); err != nil {
		b.Fatal(err)
	}
	library := m.NVML()
	library.Init()
	for b.Loop() {
		device, ret := library.DeviceGetHandleByIndex(3)
		if ret != nvml.SUCCESS {
			b.Fatal(ret)
		}
		if _, ret := device.GetUUID(); ret != nvml.SUCCESS {
			b.Fatal(ret)
		}
	}
}
