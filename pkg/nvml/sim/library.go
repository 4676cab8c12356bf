package sim

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// NVML gives the machine as go-nvml's library. What the simulator does not have answers ERROR_NOT_SUPPORTED. All libraries of
// one Machine share one count of Init and Shutdown, as the real library does within a process.
//
// Functions of go-nvml whose result is a handler with further methods (their names end in V) are not simulated: those methods
// call the real library.
func (m *Machine) NVML() nvml.Interface {
	extensions := &mock.ExtendedInterface{LookupSymbolFunc: m.lookupSymbol}
	library := &mock.Interface{
		InitFunc:                          m.initLibrary,
		InitWithFlagsFunc:                 func(uint32) nvml.Return { return m.initLibrary() },
		ShutdownFunc:                      m.shutdown,
		ErrorStringFunc:                   func(r nvml.Return) string { return r.Error() },
		ExtensionsFunc:                    func() nvml.ExtendedInterface { return extensions },
		EventSetCreateFunc:                m.newEventSet,
		DeviceGetCountFunc:                m.count,
		DeviceGetHandleByIndexFunc:        m.handleByIndex,
		DeviceGetHandleByUUIDFunc:         m.handleByUUID,
		DeviceGetHandleByPciBusIdFunc:     m.handleByBusID,
		SystemGetDriverVersionFunc:        func() (string, nvml.Return) { return m.profile.DriverVersion, nvml.SUCCESS },
		SystemGetNVMLVersionFunc:          func() (string, nvml.Return) { return m.profile.NVMLVersion, nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc:    m.cudaVersion,
		SystemGetCudaDriverVersion_v2Func: m.cudaVersion,
	}
	instrument(library, m.libraryGate, map[string]reflect.Type{
		"Device":   reflect.TypeFor[nvml.Device](),
		"EventSet": reflect.TypeFor[nvml.EventSet](),
	})
	return library
}

// libraryGate decides what a call on the library meets before it does its work.
func (m *Machine) libraryGate(call string) nvml.Return {
	switch call {
	case "Extensions", "ErrorString":
		return nvml.SUCCESS
	case "Init", "InitWithFlags", "Shutdown":
	default:
		if !m.initialised() {
			return nvml.ERROR_UNINITIALIZED
		}
	}
	return m.meet(func(f Fault) bool { return f.Minor == AnyMinor && onCall(f, call) })
}

func (m *Machine) initLibrary() nvml.Return {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inits++
	return nvml.SUCCESS
}

func (m *Machine) shutdown() nvml.Return {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	m.inits--
	return nvml.SUCCESS
}

func (m *Machine) cudaVersion() (int, nvml.Return) {
	major, minor, _ := strings.Cut(m.profile.CUDADriverVersion, ".")
	high, err1 := strconv.Atoi(major)
	low, err2 := strconv.Atoi(minor)
	if err1 != nil || err2 != nil {
		return 0, nvml.ERROR_UNKNOWN
	}
	return high*1000 + low*10, nvml.SUCCESS
}

func (m *Machine) count() (int, nvml.Return) {
	present, ret := m.enumerated()
	return len(present), ret
}

func (m *Machine) handleByIndex(index int) (nvml.Device, nvml.Return) {
	return m.handle("DeviceGetHandleByIndex", nvml.ERROR_INVALID_ARGUMENT, func(i int, _ *gpu) bool { return i == index })
}

func (m *Machine) handleByUUID(id string) (nvml.Device, nvml.Return) {
	return m.handle("DeviceGetHandleByUUID", nvml.ERROR_NOT_FOUND, func(_ int, g *gpu) bool { return g.uuid == id })
}

// handleByBusID takes NVML's form, with eight digits of domain, and the kernel's, with four.
func (m *Machine) handleByBusID(busID string) (nvml.Device, nvml.Return) {
	return m.handle("DeviceGetHandleByPciBusId", nvml.ERROR_NOT_FOUND, func(_ int, g *gpu) bool {
		return strings.EqualFold(busID, g.nvmlBusID()) || strings.EqualFold(busID, g.facts.BusID)
	})
}

func (m *Machine) handle(call string, none nvml.Return, is func(index int, g *gpu) bool) (nvml.Device, nvml.Return) {
	present, ret := m.enumerated()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for i, g := range present {
		if !is(i, g) {
			continue
		}
		ret := m.meet(func(f Fault) bool { return f.Minor == g.facts.Minor && onCall(f, call) })
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		if ret := g.lost(); ret != nvml.SUCCESS {
			return nil, ret
		}
		return g.newHandle(), nvml.SUCCESS
	}
	return nil, none
}

var errNoSymbol = errors.New("the simulated library has no such symbol")

// lookupSymbol says which functions the simulator has, which is how callers find out what a driver can do.
func (m *Machine) lookupSymbol(symbol string) error {
	name, ok := strings.CutPrefix(symbol, "nvml")
	if !ok {
		return errNoSymbol
	}
	if method, ok := strings.CutPrefix(name, "Device"); ok && m.gpus[0].has(method) {
		return nil
	}
	switch name {
	case "Init", "InitWithFlags", "Shutdown", "EventSetCreate", "EventSetFree", "EventSetWait",
		"DeviceGetCount", "DeviceGetHandleByIndex", "DeviceGetHandleByUUID", "DeviceGetHandleByPciBusId",
		"SystemGetDriverVersion", "SystemGetNVMLVersion", "SystemGetCudaDriverVersion":
		return nil
	}
	return errNoSymbol
}

// newEventSet makes a set that waits. The simulator has no events yet, so a wait ends with its timeout or with Free.
func (m *Machine) newEventSet() (nvml.EventSet, nvml.Return) {
	freed := make(chan struct{})
	var once sync.Once
	set := &mock.EventSet{
		WaitFunc: func(milliseconds uint32) (nvml.EventData, nvml.Return) {
			timer := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			case <-freed:
				return nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT
			}
		},
		FreeFunc: func() nvml.Return {
			once.Do(func() { close(freed) })
			return nvml.SUCCESS
		},
	}
	instrument(set, func(call string) nvml.Return { return m.libraryGate("EventSet" + call) }, nil)
	return set, nvml.SUCCESS
}
