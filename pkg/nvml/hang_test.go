package nvml_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/nvml/sim"
)

// The tests of this file run on synctest's clock, on which a deadline passes as soon as nothing else can happen. So they
// can say exactly how long things take and yet take no time.

const callTimeout = 5 * time.Second // the default

// counted counts the questions that its GPU gets.
type counted struct {
	gonvml.Device
	uuids *atomic.Int32
}

func (c counted) GetUUID() (string, gonvml.Return) {
	c.uuids.Add(1)
	return c.Device.GetUUID()
}

func TestHungGPU(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"DeviceGetHandleByIndex", "GetPciInfo", "GetUUID", "GetMemoryInfo", "GetBrand", "GetVbiosVersion"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { hungGPU(t, call) })
		})
	}
}

func hungGPU(t *testing.T, call string) {
	simulated, library := simulate(t, "dgx-h100")
	hardware := open(t, library)
	defer closeHardware(t, hardware)
	inject(t, simulated, sim.Fault{Kind: sim.FaultHang, Minor: 3, Call: call})
	start := time.Now()

	machine, failures := discover(t, hardware)
	others := []int{0, 1, 2, 4, 5, 6, 7}
	wantFound(t, machine, failures, others, []int{3})
	wantErrorIs(t, failures[0].Err, nvml.ErrHung)
	for _, word := range []string{"GPU 3", call, "5s", "nvidia-smi", "dmesg"} {
		if !strings.Contains(failures[0].Err.Error(), word) {
			t.Errorf("the error lacks %q: %v", word, failures[0].Err)
		}
	}
	if took := time.Since(start); took != callTimeout {
		t.Errorf("a hung GPU held the discovery up for %s, want one deadline, %s", took, callTimeout)
	}

	// It is not asked again, and the failure stays the same one.
	again, failuresAgain := discover(t, hardware)
	wantFound(t, again, failuresAgain, others, []int{3})
	if took := time.Since(start); took != callTimeout {
		t.Errorf("the second discovery waited for the hung GPU again, %s", took-callTimeout)
	}
	if failuresAgain[0].Err.Error() != failures[0].Err.Error() {
		t.Errorf("the error changed from %q to %q", failures[0].Err, failuresAgain[0].Err)
	}

	clearFaults(t, simulated)
	synctest.Wait() // for NVML to return
	machine, failures = discover(t, hardware)
	wantFound(t, machine, failures, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil)
}

// TestHungGPUIsNotAsked checks that a GPU that hangs at a known call is left alone even when its index has moved.
func TestHungGPUIsNotAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "dgx-h100")
		var asked atomic.Int32
		library.wrap = func(_ int, d gonvml.Device) gonvml.Device {
			if minor, _ := d.GetMinorNumber(); minor == 3 {
				return counted{d, &asked}
			}
			return d
		}
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		inject(t, simulated, sim.Fault{Kind: sim.FaultHang, Minor: 3, Call: "GetUUID"})
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, []int{0, 1, 2, 4, 5, 6, 7}, []int{3})

		inject(t, simulated, sim.Fault{Kind: sim.FaultMissing, Minor: 0})
		for range 3 {
			machine, failures = discover(t, hardware)
			wantFound(t, machine, failures, []int{1, 2, 4, 5, 6, 7}, []int{2})
			wantErrorIs(t, failures[0].Err, nvml.ErrHung)
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("the hung GPU was asked %d times, want once", n)
		}
		clearFaults(t, simulated)
	})
}

func TestAllGPUsHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "dgx-h100")
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		for minor := range 8 {
			inject(t, simulated, sim.Fault{Kind: sim.FaultHang, Minor: minor, Call: "GetMemoryInfo"})
		}
		start := time.Now()
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, nil, []int{0, 1, 2, 3, 4, 5, 6, 7})
		if took := time.Since(start); took != callTimeout {
			t.Errorf("eight hung GPUs took %s, want one deadline", took)
		}
		clearFaults(t, simulated)
	})
}

// TestSlowGPU has a GPU that answers shortly before the deadline, which is no failure.
func TestSlowGPU(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "a30-2")
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		inject(t, simulated, sim.Fault{Kind: sim.FaultHang, Minor: 1, Call: "GetName", Delay: callTimeout - time.Millisecond, Times: 1})
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, []int{0, 1}, nil)
	})
}

func TestHungLibrary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "a30-2")
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		inject(t, simulated, sim.Fault{Kind: sim.FaultHang, Minor: sim.AnyMinor, Call: "DeviceGetCount"})
		for range 2 {
			_, _, err := hardware.Discover(t.Context())
			wantErrorIs(t, err, nvml.ErrHung)
		}
		clearFaults(t, simulated)
		synctest.Wait()
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, []int{0, 1}, nil)
	})
}

// TestCallerGivesUp cancels while a GPU takes its time. That GPU is not hung: it may be asked at once.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "a30-2")
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		slow := sim.Fault{Kind: sim.FaultHang, Minor: 1, Call: "GetName"}
		inject(t, simulated, slow)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := hardware.Discover(ctx)
		wantErrorIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, nvml.ErrHung) {
			t.Errorf("one second is not the deadline of a call: %v", err)
		}
		if err := hardware.CheckGPU(t.Context(), simulated.UUID(1)); err != nil {
			t.Errorf("CheckGPU: %v", err)
		}
		// When the call has been out for the whole of its deadline, it counts as hung.
		<-time.After(callTimeout)
		wantErrorIs(t, hardware.CheckGPU(t.Context(), simulated.UUID(1)), nvml.ErrHung)
		clearFaults(t, simulated)
	})
}

func TestCloseWaitsForHungCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		simulated, library := simulate(t, "a30-2")
		hardware := open(t, library)
		inject(t, simulated, sim.Fault{Kind: sim.FaultHang, Minor: 1, Call: "GetName"})
		discover(t, hardware)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := hardware.Close(ctx)
		wantErrorIs(t, err, context.DeadlineExceeded)
		wantErrorIs(t, err, nvml.ErrHung)
		if !strings.Contains(err.Error(), "GetName") || library.shutdowns.Load() != 0 {
			t.Errorf("the library must stay, and the error must name the call: %v, %d shutdowns", err, library.shutdowns.Load())
		}
		if _, _, err := hardware.Discover(t.Context()); err == nil {
			t.Error("Discover works after Close")
		}
		closed := make(chan error)
		go func() { closed <- hardware.Close(context.WithoutCancel(t.Context())) }()
		synctest.Wait()
		clearFaults(t, simulated)
		if err := <-closed; err != nil {
			t.Errorf("Close, when the call has returned: %v", err)
		}
		closeHardware(t, hardware) // again
		if n := library.shutdowns.Load(); n != 1 {
			t.Errorf("the library was shut down %d times, want once", n)
		}
	})
}

func TestInitHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, library := simulate(t, "a30-2")
		returns := make(chan struct{})
		library.initReturn = func() gonvml.Return {
			<-returns
			return gonvml.SUCCESS
		}
		start := time.Now()
		_, err := nvml.Open(t.Context(), nvml.Options{Library: library})
		wantErrorIs(t, err, nvml.ErrHung)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("Open gave up after %s, want 1m0s: drivers need their time to start all GPUs", took)
		}
		close(returns)
		synctest.Wait()
		if library.inits.Load() != 1 || library.shutdowns.Load() != 1 {
			t.Errorf("%d Init and %d Shutdown: an initialisation that came too late must be undone", library.inits.Load(), library.shutdowns.Load())
		}
	})
}
