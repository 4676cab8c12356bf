package sim_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml/sim"
)

// states are the two places where a machine's faults can be.
func states(t *testing.T) map[string]string {
	return map[string]string{"memory": "", "file": filepath.Join(t.TempDir(), "state.json")}
}

func inject(t *testing.T, m *sim.Machine, f sim.Fault) {
	t.Helper()
	if err := m.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func clearFaults(t *testing.T, m *sim.Machine) {
	t.Helper()
	if err := m.ClearFaults(); err != nil {
		t.Fatal(err)
	}
}

func TestLostGPU(t *testing.T) {
	for where, file := range states(t) {
		t.Run(where, func(t *testing.T) {
			m := machineWith(t, "dgx-h100", sim.Options{StateFile: file})
			library := initialised(t, m)
			before, ret := library.DeviceGetHandleByIndex(3)
			wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.SUCCESS)
			inject(t, m, sim.Fault{Kind: sim.FaultLost, Minor: 3})

			count, ret := library.DeviceGetCount()
			if ret != nvml.SUCCESS || count != 8 {
				t.Errorf("count %d, %s: a lost GPU is still counted", count, sim.ReturnName(ret))
			}
			_, ret = before.GetUUID()
			wantReturn(t, "GetUUID on an old handle", ret, nvml.ERROR_GPU_IS_LOST)
			_, ret = before.GetTemperature(nvml.TEMPERATURE_GPU)
			wantReturn(t, "an unsupported call on an old handle", ret, nvml.ERROR_GPU_IS_LOST)
			_, ret = library.DeviceGetHandleByIndex(3)
			wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.ERROR_GPU_IS_LOST)
			_, ret = library.DeviceGetHandleByUUID(m.UUID(3))
			wantReturn(t, "DeviceGetHandleByUUID", ret, nvml.ERROR_GPU_IS_LOST)
			_, ret = library.DeviceGetHandleByPciBusId("0000:61:00.0")
			wantReturn(t, "DeviceGetHandleByPciBusId", ret, nvml.ERROR_GPU_IS_LOST)

			next, ret := library.DeviceGetHandleByIndex(4)
			wantReturn(t, "the next GPU", ret, nvml.SUCCESS)
			if minor, _ := next.GetMinorNumber(); minor != 4 {
				t.Errorf("the GPU with index 4 has minor %d: another GPU moved", minor)
			}
			clearFaults(t, m)
			_, ret = before.GetUUID()
			wantReturn(t, "GetUUID after the fault", ret, nvml.SUCCESS)
		})
	}
}

func TestMissingGPU(t *testing.T) {
	m := machine(t, "dgx-h100")
	library := initialised(t, m)
	old, _ := library.DeviceGetHandleByIndex(3)
	last, _ := library.DeviceGetHandleByIndex(7)
	id := m.UUID(7)
	inject(t, m, sim.Fault{Kind: sim.FaultMissing, Minor: 3})
	if found := minors(t, library); !slices.Equal(found, []int{0, 1, 2, 4, 5, 6, 7}) {
		t.Errorf("minors %v", found)
	}
	if index, ret := last.GetIndex(); ret != nvml.SUCCESS || index != 6 {
		t.Errorf("index %d, %s; want 6, for those behind the missing GPU move", index, sim.ReturnName(ret))
	}
	if got, _ := last.GetUUID(); got != id || m.UUID(7) != id {
		t.Errorf("UUID %s, want %s", got, id)
	}
	_, ret := library.DeviceGetHandleByUUID(m.UUID(3))
	wantReturn(t, "DeviceGetHandleByUUID of the missing", ret, nvml.ERROR_NOT_FOUND)
	_, ret = old.GetIndex()
	wantReturn(t, "GetIndex of the missing", ret, nvml.ERROR_GPU_IS_LOST)
}

func TestErrorIsCountedOverProcesses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	// Two machines on one file are what two processes have: they share nothing but the file.
	one := machineWith(t, "dgx-h100", sim.Options{StateFile: file, Seed: "n"})
	two := machineWith(t, "dgx-h100", sim.Options{StateFile: file, Seed: "n"})
	first, second := initialised(t, one), initialised(t, two)
	state, err := sim.OpenState(file)
	if err != nil {
		t.Fatal(err)
	}
	fault := sim.Fault{Kind: sim.FaultError, Minor: 2, Call: "GetUUID", Return: nvml.ERROR_TIMEOUT, Times: 3}
	if err := state.Inject(fault); err != nil {
		t.Fatal(err)
	}
	a, _ := first.DeviceGetHandleByIndex(2)
	b, _ := second.DeviceGetHandleByIndex(2)
	other, _ := second.DeviceGetHandleByIndex(1)
	var got []nvml.Return
	for _, device := range []nvml.Device{a, other, b, a, b} {
		_, ret := device.GetUUID()
		got = append(got, ret)
	}
	want := []nvml.Return{nvml.ERROR_TIMEOUT, nvml.SUCCESS, nvml.ERROR_TIMEOUT, nvml.ERROR_TIMEOUT, nvml.SUCCESS}
	if !slices.Equal(got, want) {
		t.Errorf("returns %v, want %v", got, want)
	}
	if left, err := state.Faults(); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestErrorIsCountedExactly: calls at once, from two machines on one file, use up a fault exactly as often as it says.
func TestErrorIsCountedExactly(t *testing.T) {
	for where, file := range states(t) {
		t.Run(where, func(t *testing.T) {
			m := machineWith(t, "t4-4", sim.Options{StateFile: file})
			libraries := []nvml.Interface{initialised(t, m), initialised(t, m)}
			if file != "" {
				libraries[1] = initialised(t, machineWith(t, "t4-4", sim.Options{StateFile: file}))
			}
			inject(t, m, sim.Fault{Kind: sim.FaultError, Minor: sim.AnyMinor, Call: "DeviceGetCount", Return: nvml.ERROR_UNKNOWN, Times: 20})
			var mu sync.Mutex
			failed := 0
			var wg sync.WaitGroup
			for i := range 60 {
				wg.Go(func() {
					if _, ret := libraries[i%2].DeviceGetCount(); ret == nvml.ERROR_UNKNOWN {
						mu.Lock()
						failed++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if failed != 20 {
				t.Errorf("%d calls failed, want 20", failed)
			}
		})
	}
}

func TestErrorMatchesItsCall(t *testing.T) {
	m := machine(t, "dgx-h100")
	library := initialised(t, m)
	handle, _ := library.DeviceGetHandleByIndex(5)
	tests := map[string]struct {
		fault sim.Fault
		hit   []string
	}{
		"a handle of one GPU":        {sim.Fault{Minor: 5, Call: "DeviceGetHandleByIndex"}, []string{"index 5"}},
		"handles of all GPUs":        {sim.Fault{Minor: -1, Call: "DeviceGetHandleByIndex"}, []string{"index 0", "index 5"}},
		"a call on one GPU":          {sim.Fault{Minor: 5, Call: "GetName"}, []string{"name 5"}},
		"a call on another GPU":      {sim.Fault{Minor: 6, Call: "GetName"}, nil},
		"a call on every GPU":        {sim.Fault{Minor: -1, Call: "GetName"}, []string{"name 5"}},
		"every call on one GPU":      {sim.Fault{Minor: 5}, []string{"index 5", "name 5"}},
		"the library's version":      {sim.Fault{Minor: -1, Call: "SystemGetDriverVersion"}, []string{"version"}},
		"every call":                 {sim.Fault{Minor: -1}, []string{"index 0", "index 5", "init", "name 5", "version"}},
		"the start of the library":   {sim.Fault{Minor: -1, Call: "Init"}, []string{"init"}},
		"a function that is unknown": {sim.Fault{Minor: -1, Call: "Frobnicate"}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.fault.Kind, test.fault.Return = sim.FaultError, nvml.ERROR_DRIVER_NOT_LOADED
			inject(t, m, test.fault)
			var hit []string
			note := func(what string, ret nvml.Return) {
				if ret == nvml.ERROR_DRIVER_NOT_LOADED {
					hit = append(hit, what)
				} else if ret != nvml.SUCCESS {
					t.Errorf("%s: %s", what, sim.ReturnName(ret))
				}
			}
			_, ret := library.DeviceGetHandleByIndex(0)
			note("index 0", ret)
			_, ret = library.DeviceGetHandleByIndex(5)
			note("index 5", ret)
			note("init", library.Init())
			_, ret = handle.GetName()
			note("name 5", ret)
			_, ret = library.SystemGetDriverVersion()
			note("version", ret)
			if !slices.Equal(hit, test.hit) {
				t.Errorf("the fault hit %v, want %v", hit, test.hit)
			}
			clearFaults(t, m)
		})
	}
}

func TestHangUntilCleared(t *testing.T) {
	for where, file := range states(t) {
		t.Run(where, func(t *testing.T) {
			m := machineWith(t, "dgx-h100", sim.Options{StateFile: file})
			library := initialised(t, m)
			handle, _ := library.DeviceGetHandleByIndex(1)
			other, _ := library.DeviceGetHandleByIndex(2)
			inject(t, m, sim.Fault{Kind: sim.FaultHang, Minor: 1})
			done := make(chan nvml.Return, 3)
			for range 3 {
				go func() {
					_, ret := handle.GetName()
					done <- ret
				}()
			}
			// An unrelated change must not end the hang, nor may it hold up another GPU.
			inject(t, m, sim.Fault{Kind: sim.FaultLost, Minor: 7})
			_, ret := other.GetName()
			wantReturn(t, "another GPU during the hang", ret, nvml.SUCCESS)
			select {
			case ret := <-done:
				t.Fatalf("the call returned %s though the fault stands", sim.ReturnName(ret))
			case <-time.After(50 * time.Millisecond):
			}
			if file == "" {
				clearFaults(t, m)
			} else { // as another process does
				state, err := sim.OpenState(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := state.ClearFaults(); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				select {
				case ret := <-done:
					wantReturn(t, "the call that hung", ret, nvml.SUCCESS)
				case <-time.After(10 * time.Second):
					t.Fatal("the call hangs though the fault is cleared")
				}
			}
		})
	}
}

func TestHangEndsWithItsDelay(t *testing.T) {
	for where, file := range states(t) {
		for times := range 2 { // until cleared, and once
			t.Run(where, func(t *testing.T) {
				m := machineWith(t, "dgx-h100", sim.Options{StateFile: file})
				library := initialised(t, m)
				handle, _ := library.DeviceGetHandleByIndex(1)
				const delay = 30 * time.Millisecond
				inject(t, m, sim.Fault{Kind: sim.FaultHang, Minor: 1, Call: "GetName", Delay: delay, Times: times})
				start := time.Now()
				_, ret := handle.GetName()
				wantReturn(t, "GetName", ret, nvml.SUCCESS)
				if took := time.Since(start); took < delay {
					t.Errorf("the call took %s, want at least %s", took, delay)
				}
				if left, err := m.Faults(); err != nil || len(left) != 1-times {
					t.Errorf("faults %v, %v", left, err)
				}
				clearFaults(t, m)
			})
		}
	}
}

func TestStateOutlivesTheMachine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	want := []sim.Fault{
		{Kind: sim.FaultLost, Minor: 3},
		{Kind: sim.FaultError, Minor: -1, Call: "DeviceGetCount", Return: nvml.ERROR_UNKNOWN, Times: 2},
		{Kind: sim.FaultError, Minor: 1, Call: "GetName", Return: nvml.Return(4711)},
		{Kind: sim.FaultHang, Minor: 0, Delay: 90 * time.Second},
	}
	m := machineWith(t, "dgx-h100", sim.Options{StateFile: file})
	for _, fault := range want {
		inject(t, m, fault)
	}
	got, err := machineWith(t, "dgx-h100", sim.Options{StateFile: file}).Faults()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read %+v, %v\nwant %+v", got, err, want)
	}
	data, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(data), `"ERROR_UNKNOWN"`) || !strings.Contains(string(data), `"1m30s"`) {
		t.Errorf("the file is not written for people: %v\n%s", err, data)
	}
	if err := os.Remove(file); err != nil { // a machine whose file goes away is healthy again
		t.Fatal(err)
	}
	if got, err := m.Faults(); err != nil || len(got) != 0 {
		t.Errorf("faults without a file: %v, %v", got, err)
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 || entries[0].Name() != "state.json.lock" {
		t.Errorf("left beside the state: %v, %v", entries, err)
	}
}

func TestDamagedState(t *testing.T) {
	for name, data := range map[string]string{
		"empty": "", "cut off": `{"version": 1, "faults": [{"ki`, "other version": `{"version": 2, "faults": []}`,
		"unknown field": `{"version": 1, "bugs": []}`, "unknown kind": `{"version": 1, "faults": [{"kind": "fire", "minor": 1}]}`,
		"unknown return": `{"version": 1, "faults": [{"kind": "error", "minor": 1, "return": "OOPS"}]}`,
		"bad delay":      `{"version": 1, "faults": [{"kind": "hang", "minor": 1, "delay": "soon"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "state.json")
			if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			p, err := sim.LoadProfile("t4-4")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sim.New(p, sim.Options{StateFile: file}); err == nil || !strings.Contains(err.Error(), file+" is damaged") {
				t.Errorf("error %v, want one that names the file", err)
			}
		})
	}
}

// TestStateDamagedWhileRunning: NVML answers an error, and goes on when the file is whole again.
func TestStateDamagedWhileRunning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	library := initialised(t, machineWith(t, "t4-4", sim.Options{StateFile: file}))
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, ret := library.DeviceGetCount()
	wantReturn(t, "DeviceGetCount", ret, nvml.ERROR_UNKNOWN)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_, ret = library.DeviceGetCount()
	wantReturn(t, "DeviceGetCount", ret, nvml.SUCCESS)
}

func TestInjectRefuses(t *testing.T) {
	m := machine(t, "t4-4")
	for want, fault := range map[string]sim.Fault{
		"has no GPU with minor number 4": {Kind: sim.FaultLost, Minor: 4},
		"unknown kind":                   {Kind: "fire", Minor: 1},
		"needs the minor number":         {Kind: sim.FaultLost, Minor: sim.AnyMinor},
		"needs the error":                {Kind: sim.FaultError, Minor: 1, Call: "GetName"},
		"cannot be negative":             {Kind: sim.FaultHang, Minor: 1, Delay: -1},
		"needs a delay":                  {Kind: sim.FaultHang, Minor: 1, Times: 1},
	} {
		if err := m.Inject(fault); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Inject(%+v): %v, want an error with %q", fault, err, want)
		}
	}
	state, err := sim.OpenState("")
	if err != nil {
		t.Fatal(err)
	}
	if err := state.Inject(sim.Fault{Kind: sim.FaultLost, Minor: -2}); err == nil {
		t.Error("minor -2 was accepted")
	}
	if _, err := sim.New(nil, sim.Options{}); err == nil {
		t.Error("a machine without a profile was made")
	}
	dir := t.TempDir()
	deep, err := sim.OpenState(filepath.Join(dir, "new", "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := deep.Inject(sim.Fault{Kind: sim.FaultLost, Minor: 1}); err != nil {
		t.Errorf("the directory of the state is made when it is needed: %v", err)
	}
	if _, err := sim.OpenState(dir); err == nil {
		t.Error("a directory was opened as a state file")
	}
}

func TestReturnNames(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_UNKNOWN, nvml.Return(4711)} {
		name := sim.ReturnName(ret)
		if got, err := sim.ParseReturn(name); err != nil || got != ret {
			t.Errorf("ParseReturn(%s): %v, %v", name, got, err)
		}
	}
	if got, err := sim.ParseReturn("NVML_ERROR_TIMEOUT"); err != nil || got != nvml.ERROR_TIMEOUT {
		t.Errorf("nvml.h's name: %v, %v", got, err)
	}
	if _, err := sim.ParseReturn("ERROR_NONE_SUCH"); err == nil {
		t.Error("an unknown name was accepted")
	}
}
