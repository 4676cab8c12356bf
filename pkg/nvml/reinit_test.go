package nvml_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/nvml/sim"
)

// lostDriver are the answers of a library whose driver was unloaded, or loaded again, under it.
func lostDriver() []gonvml.Return {
	return []gonvml.Return{gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED, gonvml.ERROR_LIB_RM_VERSION_MISMATCH}
}

func TestDriverRestart(t *testing.T) {
	t.Parallel()
	for _, ret := range lostDriver() {
		for _, fault := range []sim.Fault{
			{Minor: sim.AnyMinor, Call: "SystemGetDriverVersion"},
			{Minor: sim.AnyMinor, Call: "SystemGetCudaDriverVersion"},
			{Minor: sim.AnyMinor, Call: "DeviceGetCount"},
			{Minor: 1, Call: "DeviceGetHandleByIndex"},
			{Minor: 1, Call: "GetUUID"},
			{Minor: 1, Call: "GetBrand"},
		} {
			t.Run(sim.ReturnName(ret)+"/"+fault.Call, func(t *testing.T) {
				t.Parallel()
				simulated, library := simulate(t, "a30-2")
				hardware := open(t, library)
				defer closeHardware(t, hardware)
				fault.Kind, fault.Return, fault.Times = sim.FaultError, ret, 1
				inject(t, simulated, fault)
				machine, failures := discover(t, hardware)
				wantFound(t, machine, failures, []int{0, 1}, nil)
				wantStarts(t, library, 2, 1)
				discover(t, hardware)
				wantStarts(t, library, 2, 1)
			})
		}
	}
}

func wantStarts(t *testing.T, l *library, inits, shutdowns int32) {
	t.Helper()
	if l.inits.Load() != inits || l.shutdowns.Load() != shutdowns {
		t.Errorf("%d Init and %d Shutdown, want %d and %d", l.inits.Load(), l.shutdowns.Load(), inits, shutdowns)
	}
}

// TestDriverStaysAway unloads the driver for a while: discovery fails as a whole, asks nothing of a library that is not initialised
// (the real one would crash), and heals by itself.
func TestDriverStaysAway(t *testing.T) {
	t.Parallel()
	simulated, library := simulate(t, "a30-2")
	var away atomic.Bool
	library.initReturn = func() gonvml.Return {
		if away.Load() {
			return gonvml.ERROR_DRIVER_NOT_LOADED
		}
		return gonvml.SUCCESS
	}
	hardware := open(t, library)
	defer closeHardware(t, hardware)
	discover(t, hardware)

	away.Store(true)
	inject(t, simulated, sim.Fault{Kind: sim.FaultError, Minor: sim.AnyMinor, Return: gonvml.ERROR_DRIVER_NOT_LOADED, Call: "DeviceGetCount"})
	for range 3 {
		machine, _, err := hardware.Discover(t.Context())
		wantErrorIs(t, err, gonvml.ERROR_DRIVER_NOT_LOADED)
		if len(machine.GPUs) > 0 {
			t.Errorf("GPUs %v without a driver", minorsOf(machine))
		}
		wantErrorIs(t, hardware.CheckGPU(t.Context(), simulated.UUID(0)), gonvml.ERROR_DRIVER_NOT_LOADED)
	}
	if n := library.shutdowns.Load(); n != 1 {
		t.Errorf("a library that is not initialised was shut down: %d times in all, want once", n)
	}

	away.Store(false)
	clearFaults(t, simulated)
	if err := hardware.CheckGPU(t.Context(), simulated.UUID(0)); err != nil {
		t.Errorf("CheckGPU, with the driver back: %v", err)
	}
	machine, failures := discover(t, hardware)
	wantFound(t, machine, failures, []int{0, 1}, nil)
}

// TestOneGPUWithoutDriver has a GPU that for good gives the answer of a lost driver: that fails this GPU only.
func TestOneGPUWithoutDriver(t *testing.T) {
	t.Parallel()
	simulated, library := simulate(t, "a30-2")
	hardware := open(t, library)
	defer closeHardware(t, hardware)
	inject(t, simulated, sim.Fault{Kind: sim.FaultError, Minor: 0, Call: "GetUUID", Return: gonvml.ERROR_UNINITIALIZED})
	machine, failures := discover(t, hardware)
	wantFound(t, machine, failures, []int{1}, []int{0})
	wantStarts(t, library, 2, 1)
}

// TestNoRestartUnderACall needs a new initialisation while a call is still inside the library, which must not be unloaded then.
func TestNoRestartUnderACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "dgx-h100")
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		inject(t, simulated, sim.Fault{Kind: sim.FaultHang, Minor: 3, Call: "GetUUID"})
		discover(t, hardware)

		inject(t, simulated, sim.Fault{Kind: sim.FaultError, Minor: 5, Call: "GetUUID", Return: gonvml.ERROR_UNINITIALIZED})
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, []int{0, 1, 2, 4, 6, 7}, []int{3, 5})
		inject(t, simulated, sim.Fault{Kind: sim.FaultError, Minor: sim.AnyMinor, Call: "DeviceGetCount", Return: gonvml.ERROR_UNINITIALIZED})
		_, _, err := hardware.Discover(t.Context())
		wantErrorIs(t, err, gonvml.ERROR_UNINITIALIZED)
		wantErrorIs(t, hardware.CheckGPU(t.Context(), simulated.UUID(3)), nvml.ErrHung)
		wantStarts(t, library, 1, 0)

		clearFaults(t, simulated)
		synctest.Wait()
		machine, failures = discover(t, hardware)
		wantFound(t, machine, failures, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil)
	})
}

// TestOneRestartForTwo lets two discoveries meet the dead library at the same time: one starts it, and the other uses it.
func TestOneRestartForTwo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "a30-2")
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		inject(t, simulated,
			sim.Fault{Kind: sim.FaultHang, Minor: sim.AnyMinor, Call: "SystemGetDriverVersion", Times: 2, Delay: time.Second},
			sim.Fault{Kind: sim.FaultError, Minor: sim.AnyMinor, Call: "DeviceGetCount", Times: 2, Return: gonvml.ERROR_UNINITIALIZED})
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if machine, _, err := hardware.Discover(t.Context()); err != nil || len(machine.GPUs) != 2 {
					t.Errorf("found %v: %v", minorsOf(machine), err)
				}
			})
		}
		both.Wait()
		wantStarts(t, library, 2, 1)
	})
}

// TestConcurrentUse lets many ask while the driver restarts again and again.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	simulated, library := simulate(t, "dgx-h100")
	hardware := open(t, library)
	discover(t, hardware)
	var users sync.WaitGroup
	for user := range 8 {
		users.Go(func() {
			for range 10 {
				// Somebody else may use the library up again between the two tries of this one.
				if err := hardware.CheckGPU(t.Context(), simulated.UUID(user)); err != nil {
					wantErrorIs(t, err, gonvml.ERROR_UNINITIALIZED)
				}
			}
		})
	}
	users.Go(func() {
		for range 10 {
			inject(t, simulated, sim.Fault{Kind: sim.FaultError, Minor: sim.AnyMinor, Return: gonvml.ERROR_UNINITIALIZED, Call: "DeviceGetHandleByPciBusId", Times: 1})
			if _, _, err := hardware.Discover(t.Context()); err != nil {
				t.Errorf("Discover: %v", err)
			}
		}
	})
	users.Wait()
	clearFaults(t, simulated)
	machine, failures := discover(t, hardware)
	wantFound(t, machine, failures, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil)
	closeHardware(t, hardware)
	if library.inits.Load() != library.shutdowns.Load() {
		t.Errorf("%d Init and %d Shutdown", library.inits.Load(), library.shutdowns.Load())
	}
}
