package sim_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml/sim"
)

func TestLibraryFacts(t *testing.T) {
	m := machine(t, "dgx-h100")
	library := m.NVML()

	_, ret := library.DeviceGetCount()
	wantReturn(t, "DeviceGetCount before Init", ret, nvml.ERROR_UNINITIALIZED)
	wantReturn(t, "Shutdown before Init", library.Shutdown(), nvml.ERROR_UNINITIALIZED)
	wantReturn(t, "Init", library.Init(), nvml.SUCCESS)
	wantReturn(t, "second Init", library.InitWithFlags(0), nvml.SUCCESS)
	wantReturn(t, "Shutdown", library.Shutdown(), nvml.SUCCESS)

	driver, ret := library.SystemGetDriverVersion()
	wantReturn(t, "SystemGetDriverVersion after one Shutdown of two", ret, nvml.SUCCESS)
	version, _ := library.SystemGetNVMLVersion()
	cuda, _ := library.SystemGetCudaDriverVersion()
	if driver != "550.163.01" || version != "12.550.163.01" || cuda != 12040 {
		t.Errorf("versions %q, %q, %d", driver, version, cuda)
	}

	handle, ret := library.DeviceGetHandleByIndex(3)
	wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.SUCCESS)
	wantReturn(t, "last Shutdown", library.Shutdown(), nvml.SUCCESS)
	_, ret = handle.GetUUID()
	wantReturn(t, "GetUUID on a handle from before", ret, nvml.ERROR_UNINITIALIZED)
	wantReturn(t, "Init again", library.Init(), nvml.SUCCESS)
	id, ret := handle.GetUUID()
	wantReturn(t, "GetUUID", ret, nvml.SUCCESS)
	if id != m.UUID(3) || !strings.HasPrefix(id, "GPU-") || len(id) != 40 {
		t.Errorf("UUID %q, want %q", id, m.UUID(3))
	}
}

func TestHandles(t *testing.T) {
	m := machine(t, "l40s-pcie-8")
	library := initialised(t, m)
	first, ret := library.DeviceGetHandleByIndex(0)
	wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.SUCCESS)
	id, _ := first.GetUUID()
	for what, get := range map[string]func() (nvml.Device, nvml.Return){
		"UUID":            func() (nvml.Device, nvml.Return) { return library.DeviceGetHandleByUUID(id) },
		"NVML's bus id":   func() (nvml.Device, nvml.Return) { return library.DeviceGetHandleByPciBusId("00000000:19:00.0") },
		"kernel's bus id": func() (nvml.Device, nvml.Return) { return library.DeviceGetHandleByPciBusId("0000:19:00.0") },
	} {
		handle, ret := get()
		wantReturn(t, what, ret, nvml.SUCCESS)
		minor, _ := handle.GetMinorNumber()
		index, _ := handle.GetIndex()
		if minor != 4 || index != 0 {
			t.Errorf("by %s: minor %d, index %d; want 4, 0", what, minor, index)
		}
		// The library has every function of a device too.
		if again, ret := library.DeviceGetUUID(handle); ret != nvml.SUCCESS || again != id {
			t.Errorf("DeviceGetUUID: %q, %s", again, sim.ReturnName(ret))
		}
	}
	_, ret = library.DeviceGetHandleByIndex(8)
	wantReturn(t, "index 8", ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = library.DeviceGetHandleByIndex(-1)
	wantReturn(t, "index -1", ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = library.DeviceGetHandleByUUID("GPU-none")
	wantReturn(t, "unknown UUID", ret, nvml.ERROR_NOT_FOUND)
	_, ret = library.DeviceGetHandleByPciBusId("0000:ff:00.0")
	wantReturn(t, "unknown bus id", ret, nvml.ERROR_NOT_FOUND)
	_, ret = library.DeviceGetUUID(nil)
	wantReturn(t, "no handle", ret, nvml.ERROR_INVALID_ARGUMENT)
}

// TestNVLib reads every machine with NVIDIA's helper library, which is what nvcdi does.
func TestNVLib(t *testing.T) {
	for name, want := range map[string]string{
		"dgx-a100":     "NVIDIA A100-SXM4-40GB|Nvidia|Ampere|8.0|42949672960|MIG|ECC|fabric false|0000:07:00.0",
		"dgx-h100":     "NVIDIA H100 80GB HBM3|Nvidia|Hopper|9.0|85520809984|MIG|ECC|fabric false|0000:1b:00.0",
		"gb200-nvl72":  "NVIDIA GB200|Nvidia|Blackwell|10.0|198674743296|MIG|ECC|fabric true|0008:01:00.0",
		"l40s-pcie-8":  "NVIDIA L40S|Nvidia|Ada Lovelace|8.9|48305799168|-|ECC|fabric false|0000:19:00.0",
		"hgx-16":       "Tesla V100-SXM3-32GB|Tesla|Volta|7.0|34359738368|-|ECC|fabric false|0000:34:00.0",
		"rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition|Nvidia|Blackwell|12.0|102641958912|MIG|ECC|fabric false|0000:19:00.0",
	} {
		t.Run(name, func(t *testing.T) {
			library := initialised(t, machine(t, name))
			devices, err := device.New(library).GetDevices()
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(t, devices[0]); got != want {
				t.Errorf("first GPU\n%s, want\n%s", got, want)
			}
			for _, d := range devices {
				migs, err := d.GetMigDevices()
				if err != nil || len(migs) != 0 {
					t.Errorf("MIG devices %d, %v", len(migs), err)
				}
			}
		})
	}
}

func describe(t *testing.T, d device.Device) string {
	t.Helper()
	name, ret := d.GetName()
	wantReturn(t, "GetName", ret, nvml.SUCCESS)
	brand, err1 := d.GetBrandAsString()
	architecture, err2 := d.GetArchitectureAsString()
	capability, err3 := d.GetCudaComputeCapabilityAsString()
	isMIG, err4 := d.IsMigCapable()
	enabled, err5 := d.IsMigEnabled()
	fabric, err6 := d.IsFabricAttached()
	busID, err7 := d.GetPCIBusID()
	for _, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if err != nil {
			t.Fatal(err)
		}
	}
	memory, ret := d.GetMemoryInfo()
	wantReturn(t, "GetMemoryInfo", ret, nvml.SUCCESS)
	memory2, ret := d.GetMemoryInfo_v2()
	wantReturn(t, "GetMemoryInfo_v2", ret, nvml.SUCCESS)
	if memory.Total != memory2.Total || memory.Free+memory.Used != memory.Total || enabled {
		t.Errorf("memory %+v and %+v, MIG %t", memory, memory2, enabled)
	}
	mig, ecc := "-", "-"
	if isMIG {
		mig = "MIG"
	}
	if on, _, ret := d.GetEccMode(); ret == nvml.SUCCESS && on == nvml.FEATURE_ENABLED {
		ecc = "ECC"
	}
	return fmt.Sprintf("%s|%s|%s|%s|%d|%s|%s|fabric %t|%s", name, brand, architecture, capability, memory.Total, mig, ecc, fabric, busID)
}

func TestPCIInfo(t *testing.T) {
	library := initialised(t, machine(t, "gb200-nvl72"))
	handle, ret := library.DeviceGetHandleByIndex(3)
	wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.SUCCESS)
	info, ret := handle.GetPciInfo()
	wantReturn(t, "GetPciInfo", ret, nvml.SUCCESS)
	if got := text(info.BusId[:]); got != "00000019:01:00.0" {
		t.Errorf("bus id %q", got)
	}
	if got := text(info.BusIdLegacy[:]); got != "0019:01:00.0" {
		t.Errorf("legacy bus id %q", got)
	}
	if info.Domain != 0x19 || info.Bus != 1 || info.Device != 0 || info.PciDeviceId != 0x294110de {
		t.Errorf("%+v", info)
	}
}

func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func TestUUIDsAreStableAndUnique(t *testing.T) {
	seen := map[string]string{}
	for _, profile := range sim.ProfileNames() {
		for _, seed := range []string{"node-0", "node-1"} {
			m, again := machineWith(t, profile, sim.Options{Seed: seed}), machineWith(t, profile, sim.Options{Seed: seed})
			for _, minor := range minors(t, initialised(t, m)) {
				id := m.UUID(minor)
				where := fmt.Sprintf("%s/%s/%d", profile, seed, minor)
				if other, taken := seen[id]; taken {
					t.Errorf("%s and %s share %s", where, other, id)
				}
				if again.UUID(minor) != id {
					t.Errorf("%s: %s, then %s", where, id, again.UUID(minor))
				}
				seen[id] = where
			}
		}
	}
}

// TestNoFunctionPanics calls every function of the three interfaces with zero arguments.
func TestNoFunctionPanics(t *testing.T) {
	library := initialised(t, machine(t, "dgx-h100"))
	handle, ret := library.DeviceGetHandleByIndex(0)
	wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.SUCCESS)
	set, ret := library.EventSetCreate()
	wantReturn(t, "EventSetCreate", ret, nvml.SUCCESS)
	calls := 0
	for _, value := range []reflect.Value{
		reflect.ValueOf(&handle).Elem(), reflect.ValueOf(&set).Elem(), reflect.ValueOf(&library).Elem(),
	} {
		for i := range value.NumMethod() {
			method := value.Method(i)
			var args []reflect.Value
			for j := range method.Type().NumIn() {
				args = append(args, reflect.Zero(method.Type().In(j)))
			}
			if method.Type().IsVariadic() {
				args = args[:len(args)-1]
			}
			method.Call(args)
			calls++
		}
	}
	if calls < 500 {
		t.Errorf("called %d functions, which is not all", calls)
	}
}

func TestUnsupportedFunctionSaysSo(t *testing.T) {
	library := initialised(t, machine(t, "t4-4"))
	handle, _ := library.DeviceGetHandleByIndex(0)
	_, ret := handle.GetFanSpeed()
	wantReturn(t, "GetFanSpeed", ret, nvml.ERROR_NOT_SUPPORTED)
	_, _, ret = handle.GetMigMode()
	wantReturn(t, "GetMigMode on a T4", ret, nvml.ERROR_NOT_SUPPORTED)
	for symbol, want := range map[string]bool{
		"nvmlDeviceGetMigMode": true, "nvmlInit": true, "nvmlDeviceGetFanSpeed": false, "cuInit": false,
	} {
		if has := library.Extensions().LookupSymbol(symbol) == nil; has != want {
			t.Errorf("LookupSymbol(%s): %t, want %t", symbol, has, want)
		}
	}
}

func TestSetMIGMode(t *testing.T) {
	library := initialised(t, machine(t, "dgx-h100"))
	handle, _ := library.DeviceGetHandleByIndex(0)
	for mode, want := range map[int]nvml.Return{0: nvml.SUCCESS, 1: nvml.ERROR_NOT_SUPPORTED, 7: nvml.ERROR_INVALID_ARGUMENT} {
		activation, ret := handle.SetMigMode(mode)
		if activation != want || ret != want {
			t.Errorf("SetMigMode(%d): %s, %s", mode, sim.ReturnName(activation), sim.ReturnName(ret))
		}
	}
}

func TestEventSet(t *testing.T) {
	library := initialised(t, machine(t, "dgx-h100"))
	handle, _ := library.DeviceGetHandleByIndex(0)
	set, ret := library.EventSetCreate()
	wantReturn(t, "EventSetCreate", ret, nvml.SUCCESS)
	types, ret := handle.GetSupportedEventTypes()
	wantReturn(t, "GetSupportedEventTypes", ret, nvml.SUCCESS)
	wantReturn(t, "RegisterEvents", handle.RegisterEvents(types, set), nvml.SUCCESS)
	wantReturn(t, "RegisterEvents of an unknown type", handle.RegisterEvents(1<<40, set), nvml.ERROR_NOT_SUPPORTED)
	wantReturn(t, "RegisterEvents without a set", handle.RegisterEvents(types, nil), nvml.ERROR_INVALID_ARGUMENT)
	_, ret = set.Wait(1)
	wantReturn(t, "Wait", ret, nvml.ERROR_TIMEOUT)

	done := make(chan nvml.Return)
	go func() {
		_, ret := library.EventSetWait(set, uint32(time.Hour/time.Millisecond))
		done <- ret
	}()
	wantReturn(t, "Free", library.EventSetFree(set), nvml.SUCCESS)
	wantReturn(t, "the wait that Free ends", <-done, nvml.ERROR_INVALID_ARGUMENT)
}

func TestECC(t *testing.T) {
	for ecc, want := range map[string]struct {
		state nvml.EnableState
		ret   nvml.Return
	}{
		"  ecc: true\n":  {nvml.FEATURE_ENABLED, nvml.SUCCESS},
		"  ecc: false\n": {nvml.FEATURE_DISABLED, nvml.SUCCESS},
		"":               {nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED},
	} {
		p, err := sim.ParseProfile([]byte(strings.Replace(goodProfile, "  ecc: true\n", ecc, 1)), "ecc.yaml")
		if err != nil {
			t.Fatal(err)
		}
		m, err := sim.New(p, sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		handle, ret := initialised(t, m).DeviceGetHandleByIndex(0)
		wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.SUCCESS)
		current, pending, ret := handle.GetEccMode()
		wantReturn(t, "GetEccMode", ret, want.ret)
		if current != want.state || pending != want.state {
			t.Errorf("%q: ECC %d, pending %d; want %d", ecc, current, pending, want.state)
		}
	}
	if id := machine(t, "t4-4").UUID(99); id != "" {
		t.Errorf("a GPU that is not there has the UUID %s", id)
	}
}
