package nvml_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/nvml/sim"
	"tessera.dev/tessera/pkg/topology"
)

// library is a simulated machine's NVML that counts and can answer otherwise.
type library struct {
	gonvml.Interface
	inits, shutdowns atomic.Int32
	// wrap, if set, replaces the handles that the look-up by index gives.
	wrap func(index int, device gonvml.Device) gonvml.Device
	// initReturn, if set, is asked before each Init.
	initReturn func() gonvml.Return
}

func (l *library) Init() gonvml.Return {
	l.inits.Add(1)
	if l.initReturn != nil {
		if ret := l.initReturn(); ret != gonvml.SUCCESS {
			return ret
		}
	}
	return l.Interface.Init()
}

func (l *library) Shutdown() gonvml.Return {
	l.shutdowns.Add(1)
	return l.Interface.Shutdown()
}

func (l *library) DeviceGetHandleByIndex(index int) (gonvml.Device, gonvml.Return) {
	device, ret := l.Interface.DeviceGetHandleByIndex(index)
	if ret == gonvml.SUCCESS && l.wrap != nil {
		device = l.wrap(index, device)
	}
	return device, ret
}

// device answers some questions otherwise than the simulated GPU that it wraps.
type device struct {
	gonvml.Device
	uuid  string
	minor *int
	busID string
	name  *string
	// memory, brand and architecture are answered when they are set.
	memory       *gonvml.Memory
	brand        *gonvml.BrandType
	architecture *gonvml.DeviceArchitecture
}

func (d device) GetMemoryInfo() (gonvml.Memory, gonvml.Return) {
	if d.memory != nil {
		return *d.memory, gonvml.SUCCESS
	}
	return d.Device.GetMemoryInfo()
}

func (d device) GetBrand() (gonvml.BrandType, gonvml.Return) {
	if d.brand != nil {
		return *d.brand, gonvml.SUCCESS
	}
	return d.Device.GetBrand()
}

func (d device) GetArchitecture() (gonvml.DeviceArchitecture, gonvml.Return) {
	if d.architecture != nil {
		return *d.architecture, gonvml.SUCCESS
	}
	return d.Device.GetArchitecture()
}

func (d device) GetUUID() (string, gonvml.Return) {
	if d.uuid != "" {
		return d.uuid, gonvml.SUCCESS
	}
	return d.Device.GetUUID()
}

func (d device) GetMinorNumber() (int, gonvml.Return) {
	if d.minor != nil {
		return *d.minor, gonvml.SUCCESS
	}
	return d.Device.GetMinorNumber()
}

func (d device) GetName() (string, gonvml.Return) {
	if d.name != nil {
		return *d.name, gonvml.SUCCESS
	}
	return d.Device.GetName()
}

func (d device) GetPciInfo() (gonvml.PciInfo, gonvml.Return) {
	info, ret := d.Device.GetPciInfo()
	if d.busID != "" {
		clear(info.BusId[:])
		for i := range d.busID {
			info.BusId[i] = int8(d.busID[i])
		}
	}
	return info, ret
}

func loadProfile(t *testing.T, name string) *sim.Profile {
	t.Helper()
	profile, err := sim.LoadProfile(name)
	if err != nil {
		t.Fatal(err)
	}
	return profile
}

// simulate makes a machine in memory, and a library over it that the test can bend.
func simulate(t *testing.T, profile string) (*sim.Machine, *library) {
	t.Helper()
	machine, err := sim.New(loadProfile(t, profile), sim.Options{Seed: "node-a"})
	if err != nil {
		t.Fatal(err)
	}
	return machine, &library{Interface: machine.NVML()}
}

// open opens the library with no sysfs; the test must close it.
func open(t *testing.T, l gonvml.Interface) *nvml.Hardware {
	t.Helper()
	return openAt(t, l, filepath.Join(t.TempDir(), "none"))
}

func openAt(t *testing.T, l gonvml.Interface, sysfs string) *nvml.Hardware {
	t.Helper()
	hardware, err := nvml.Open(t.Context(), nvml.Options{Library: l, SysfsRoot: sysfs})
	if err != nil {
		t.Fatal(err)
	}
	return hardware
}

func closeHardware(t *testing.T, hardware *nvml.Hardware) {
	t.Helper()
	if err := hardware.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func inject(t *testing.T, machine *sim.Machine, faults ...sim.Fault) {
	t.Helper()
	for _, fault := range faults {
		if err := machine.Inject(fault); err != nil {
			t.Fatal(err)
		}
	}
}

func clearFaults(t *testing.T, machine *sim.Machine) {
	t.Helper()
	if err := machine.ClearFaults(); err != nil {
		t.Fatal(err)
	}
}

// discover must work as a whole.
func discover(t *testing.T, hardware *nvml.Hardware) (topology.Machine, []nvml.Failure) {
	t.Helper()
	machine, failures, err := hardware.Discover(t.Context())
	if err != nil {
		t.Fatalf("Discover: %v", err)
	}
	return machine, failures
}

// wantFound checks which GPUs were found and which failed. The minor number of a failure may be unknown, so failures go by index.
func wantFound(t *testing.T, machine topology.Machine, failures []nvml.Failure, minors, failedIndices []int) {
	t.Helper()
	if got := minorsOf(machine); !slices.Equal(got, minors) {
		t.Errorf("found the GPUs with minor numbers %v, want %v", got, minors)
	}
	var indices []int
	for _, failure := range failures {
		indices = append(indices, failure.Index)
	}
	if !slices.Equal(indices, failedIndices) {
		t.Errorf("the GPUs with indices %v failed, want %v: %v", indices, failedIndices, failures)
	}
}

func minorsOf(machine topology.Machine) []int {
	var minors []int
	for _, gpu := range machine.GPUs {
		minors = append(minors, gpu.Minor)
	}
	return minors
}

func wantErrorIs(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got the error %v, want one that is %v", err, target)
	}
}
