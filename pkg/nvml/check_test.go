package nvml_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/nvml/sim"
)

func TestCheckGPU(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		faults []sim.Fault
		minor  int
		want   gonvml.Return
	}{
		"healthy":                  {want: gonvml.SUCCESS},
		"lost":                     {faults: []sim.Fault{{Kind: sim.FaultLost, Minor: 0}}, want: gonvml.ERROR_GPU_IS_LOST},
		"another is lost":          {faults: []sim.Fault{{Kind: sim.FaultLost, Minor: 1}}, want: gonvml.SUCCESS},
		"gone":                     {faults: []sim.Fault{{Kind: sim.FaultMissing, Minor: 0}}, want: gonvml.ERROR_NOT_FOUND},
		"does not tell its memory": {faults: []sim.Fault{fails("GetMemoryInfo", gonvml.ERROR_UNKNOWN)}, want: gonvml.ERROR_UNKNOWN},
		"does not tell its UUID":   {faults: []sim.Fault{fails("GetUUID", gonvml.ERROR_RESET_REQUIRED)}, want: gonvml.ERROR_RESET_REQUIRED},
	} {
		for _, discovered := range []bool{false, true} {
			t.Run(name+map[bool]string{true: "/discovered", false: ""}[discovered], func(t *testing.T) {
				t.Parallel()
				simulated, library := simulate(t, "a30-2")
				hardware := open(t, library)
				defer closeHardware(t, hardware)
				if discovered {
					discover(t, hardware)
				}
				inject(t, simulated, test.faults...)
				err := hardware.CheckGPU(t.Context(), simulated.UUID(test.minor))
				if test.want != gonvml.SUCCESS {
					wantErrorIs(t, err, test.want)
				} else if err != nil {
					t.Errorf("CheckGPU: %v", err)
				}
			})
		}
	}
}

func fails(call string, ret gonvml.Return) sim.Fault {
	return sim.Fault{Kind: sim.FaultError, Minor: 0, Call: call, Return: ret}
}

func TestCheckGPURefuses(t *testing.T) {
	t.Parallel()
	_, library := simulate(t, "a30-2")
	hardware := open(t, library)
	if err := hardware.CheckGPU(t.Context(), ""); err == nil {
		t.Error("an empty UUID is no GPU's")
	}
	wantErrorIs(t, hardware.CheckGPU(t.Context(), "GPU-00000000-0000-0000-0000-000000000000"), gonvml.ERROR_NOT_FOUND)
	closeHardware(t, hardware)
	if err := hardware.CheckGPU(t.Context(), "GPU-0"); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v", err)
	}
}

// TestCheckGPUBesideHungGPU checks the neighbour of a GPU that hangs. The look-up by UUID hangs too here, as NVML's may.
func TestCheckGPUBesideHungGPU(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "dgx-h100")
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		discover(t, hardware)
		inject(t, simulated,
			sim.Fault{Kind: sim.FaultHang, Minor: sim.AnyMinor, Call: "DeviceGetHandleByUUID"},
			sim.Fault{Kind: sim.FaultHang, Minor: 3, Call: "GetMemoryInfo"})
		start := time.Now()
		for range 2 {
			wantErrorIs(t, hardware.CheckGPU(t.Context(), simulated.UUID(3)), nvml.ErrHung)
			if err := hardware.CheckGPU(t.Context(), simulated.UUID(4)); err != nil {
				t.Errorf("the neighbour of a hung GPU: %v", err)
			}
		}
		if took := time.Since(start); took != callTimeout {
			t.Errorf("the checks took %s, want one deadline", took)
		}
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, []int{0, 1, 2, 4, 5, 6, 7}, []int{3})
		clearFaults(t, simulated)
		synctest.Wait()
		if err := hardware.CheckGPU(t.Context(), simulated.UUID(3)); err != nil {
			t.Errorf("the call returned, yet: %v", err)
		}
	})
}

// TestReplacedGPU puts another GPU in a GPU's place after discovery.
func TestReplacedGPU(t *testing.T) {
	t.Parallel()
	simulated, library := simulate(t, "a30-2")
	library.wrap = func(i int, d gonvml.Device) gonvml.Device {
		return device{Device: d, uuid: []string{"GPU-old-0", "GPU-old-1"}[i]}
	}
	hardware := open(t, library)
	defer closeHardware(t, hardware)
	discover(t, hardware)
	err := hardware.CheckGPU(t.Context(), "GPU-old-0")
	if err == nil || !strings.Contains(err.Error(), simulated.UUID(0)) || !strings.Contains(err.Error(), "GPU-old-0") {
		t.Errorf("the error must name both GPUs: %v", err)
	}
}
