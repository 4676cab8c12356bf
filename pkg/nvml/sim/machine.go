// Package sim is a machine with NVIDIA GPUs that exists on paper only.
//
// A machine is one YAML profile. It answers go-nvml's interfaces, on top of go-nvml's generated mocks, so that code written for
// NVML runs on it unchanged; and it writes a driver root (device nodes, libraries, an nvidia-smi, /proc and PCI sysfs), so that
// code that reads files finds them and a container gets real device nodes. Faults can be injected while it runs, from any process
// that opens the same state file. All facts come from the profile; nothing depends on the machine that runs the simulation.
package sim

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/uuid"
)

// uuidSpace keeps the UUIDs of simulated GPUs apart from all others. It is an arbitrary constant.
const uuidSpace = "9d3c1f52-6c0b-4e6e-8d2b-3a7f10c5e2aa"

// Options say what makes one machine differ from another of the same profile.
type Options struct {
	// StateFile holds the faults. Processes that name the same file simulate one machine. Empty keeps them in memory.
	StateFile string
	// Seed makes the GPUs' UUIDs unique; the name of the node is a good one.
	Seed string
}

// Machine is a simulated machine. It is safe for concurrent use.
type Machine struct {
	profile *Profile
	state   *State
	gpus    []*gpu // in the order of the profile, which is NVML's enumeration order

	mu    sync.Mutex
	inits int
}

// gpu is one card of a Machine.
type gpu struct {
	machine *Machine
	facts   GPU
	uuid    string
	funcs   *mock.Device // the functions of every handle
}

// New makes a machine. The profile must come from ParseProfile or LoadProfile and is not changed.
func New(p *Profile, o Options) (*Machine, error) {
	if p == nil || len(p.GPUs) == 0 {
		return nil, errors.New("make a simulated machine: the profile is empty; get one from LoadProfile")
	}
	state, err := OpenState(o.StateFile)
	if err != nil {
		return nil, fmt.Errorf("make a simulated machine: %w", err)
	}
	space, err := uuid.Parse(uuidSpace)
	if err != nil {
		return nil, fmt.Errorf("make a simulated machine: %w", err)
	}
	m := &Machine{profile: p, state: state}
	for _, facts := range p.GPUs {
		id := uuid.NewSHA1(space, fmt.Appendf(nil, "%s/%s/%d", p.Name, o.Seed, facts.Minor))
		g := &gpu{machine: m, facts: facts, uuid: "GPU-" + id.String()}
		g.funcs = g.newFuncs()
		m.gpus = append(m.gpus, g)
	}
	return m, nil
}

// Inject adds a fault, which calls that begin afterwards meet. A GPU that the machine does not have is an error.
func (m *Machine) Inject(f Fault) error {
	if f.Minor != AnyMinor && m.byMinor(f.Minor) == nil {
		return fmt.Errorf("inject a fault: the machine %s has no GPU with minor number %d", m.profile.Name, f.Minor)
	}
	return m.state.Inject(f)
}

// ClearFaults removes all faults; calls that hang go on.
func (m *Machine) ClearFaults() error { return m.state.ClearFaults() }

// Faults lists the standing faults in the order in which they were injected.
func (m *Machine) Faults() ([]Fault, error) { return m.state.Faults() }

// UUID is the UUID of the GPU with that minor number, or "" where there is none. Faults do not change it.
func (m *Machine) UUID(minor int) string {
	if g := m.byMinor(minor); g != nil {
		return g.uuid
	}
	return ""
}

func (m *Machine) byMinor(minor int) *gpu {
	for _, g := range m.gpus {
		if g.facts.Minor == minor {
			return g
		}
	}
	return nil
}

// enumerated are the GPUs that NVML counts now.
func (m *Machine) enumerated() ([]*gpu, nvml.Return) {
	faults, err := m.state.Faults()
	if err != nil {
		return nil, nvml.ERROR_UNKNOWN
	}
	missing := map[int]bool{}
	for _, f := range faults {
		if f.Kind == FaultMissing {
			missing[f.Minor] = true
		}
	}
	var present []*gpu
	for _, g := range m.gpus {
		if !missing[g.facts.Minor] {
			present = append(present, g)
		}
	}
	return present, nvml.SUCCESS
}

// nvmlBusID is the form that NVML prints: eight digits of domain, capital letters.
func (g *gpu) nvmlBusID() string { return strings.ToUpper("0000" + g.facts.BusID) }

// meet lets a call run into the first fault that matches it and returns what the call must return.
func (m *Machine) meet(match func(Fault) bool) nvml.Return {
	fault, found, err := m.state.take(match)
	if err != nil {
		return nvml.ERROR_UNKNOWN // the state is unreadable; OpenState says why
	}
	if !found {
		return nvml.SUCCESS
	}
	switch fault.Kind {
	case FaultError:
		return fault.Return
	case FaultHang:
		if err := m.state.hang(fault); err != nil {
			return nvml.ERROR_UNKNOWN
		}
	}
	return nvml.SUCCESS
}

// onCall reports whether a fault of the kinds that act on single calls is about this call.
func onCall(f Fault, call string) bool {
	return (f.Kind == FaultError || f.Kind == FaultHang) && (f.Call == "" || f.Call == call)
}

// initialised counts the calls of Init that have no Shutdown yet.
func (m *Machine) initialised() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inits > 0
}
