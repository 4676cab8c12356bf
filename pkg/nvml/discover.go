package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"tessera.dev/tessera/pkg/topology"
)

// Discover reads all GPUs, each in a goroutine of its own, so that GPUs that hang cost one deadline together and hide no other.
// The machine has the GPUs that could be read, by minor number; the failures are the others, by index. An error means that the library
// as a whole is of no use. A library that lost its driver is initialised again, once.
func (h *Hardware) Discover(ctx context.Context) (topology.Machine, []Failure, error) {
	found := h.look(ctx)
	cause := found.lostDriver()
	if cause == nil {
		return found.machine, found.failures, found.err
	}
	err := h.reinitialise(ctx, found.generation, cause)
	switch {
	case err == nil:
		found = h.look(ctx)
	case !errors.Is(err, errBusy) || found.err != nil:
		return topology.Machine{}, nil, err
	}
	return found.machine, found.failures, found.err
}

// discovery is one look at the machine.
type discovery struct {
	machine    topology.Machine
	failures   []Failure
	err        error
	generation int
}

// lostDriver is the answer that says that the library must be initialised again, or nil.
func (d discovery) lostDriver() error {
	if d.err != nil {
		if needsInit(d.err) {
			return d.err
		}
		return nil
	}
	for _, f := range d.failures {
		if needsInit(f.Err) {
			return f.Err
		}
	}
	return nil
}

func (h *Hardware) look(ctx context.Context) discovery {
	var found discovery
	generation, release, err := h.acquire(ctx)
	found.generation = generation
	if err != nil {
		found.err = err
		return found
	}
	defer release()
	count, err := h.readLibrary(ctx, &found.machine)
	if err != nil {
		found.err = err
		return found
	}
	gpus := make([]topology.GPU, count)
	errs := make([]error, count)
	refs := h.refs(count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() { gpus[i], errs[i] = h.readGPU(ctx, &refs[i]) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		found.machine = topology.Machine{}
		found.err = fmt.Errorf("read the GPUs: %w", context.Cause(ctx))
		return found
	}
	for i := range count {
		if errs[i] == nil {
			errs[i] = contradiction(refs[i], gpus[i], found.machine.GPUs)
		}
		if errs[i] != nil {
			found.failures = append(found.failures, Failure{
				Index: i, Minor: refs[i].minor, UUID: refs[i].uuid, BusID: refs[i].busID, Call: callOf(errs[i]), Err: errs[i],
			})
			continue
		}
		found.machine.GPUs = append(found.machine.GPUs, gpus[i])
	}
	slices.SortFunc(found.machine.GPUs, func(a, b topology.GPU) int { return a.Minor - b.Minor })
	h.remember(refs)
	return found
}

// readLibrary reads what is not about one GPU and returns the number of GPUs.
func (h *Hardware) readLibrary(ctx context.Context, m *topology.Machine) (int, error) {
	version, err := query(ctx, h, wholeLibrary(), "SystemGetDriverVersion", h.library.SystemGetDriverVersion)
	if err != nil {
		return 0, err
	}
	m.DriverVersion = version
	cuda, err := query(ctx, h, wholeLibrary(), "SystemGetCudaDriverVersion", h.library.SystemGetCudaDriverVersion)
	switch {
	case err == nil && cuda > 0:
		m.CUDADriverVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	case err != nil && unusable(err):
		return 0, err
	}
	count, err := query(ctx, h, wholeLibrary(), "DeviceGetCount", h.library.DeviceGetCount)
	if err != nil {
		return 0, err
	}
	return max(count, 0), nil
}

// contradiction is an error when a GPU claims to be one that an earlier index is: two devices of one name would make the
// API server refuse all of the node's.
func contradiction(ref gpuRef, gpu topology.GPU, earlier []topology.GPU) error {
	for _, other := range earlier {
		var what string
		switch {
		case other.Minor == gpu.Minor:
			what = fmt.Sprintf("minor number %d", gpu.Minor)
		case other.UUID == gpu.UUID:
			what = "UUID " + gpu.UUID
		default:
			continue
		}
		return fmt.Errorf("%s: NVML gives it the %s, which GPU %d (%s) has too: only that one is used; see nvidia-smi -q, "+
			"and reload the driver or reboot", ref, what, other.Index, other.PCI.BusID)
	}
	return nil
}

// refs names the GPUs by what the last look saw of them, as long as there are as many.
func (h *Hardware) refs(count int) []gpuRef {
	h.mu.Lock()
	defer h.mu.Unlock()
	refs := make([]gpuRef, count)
	for i := range refs {
		refs[i] = gpuRef{index: i, count: count, minor: -1}
		if len(h.known) == count {
			refs[i] = h.known[i]
		}
	}
	return refs
}

func (h *Hardware) remember(refs []gpuRef) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known = slices.Clone(refs)
}
