package cdi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	nvspec "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/spec"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"tessera.dev/tessera/pkg/topology"
)

// generate returns the file's bytes and the GPUs in it. failed names GPUs that are left out; err means that there is
// nothing worth writing.
func (s *Specs) generate(ctx context.Context, machine topology.Machine) (data []byte, listed map[string]bool, failed, err error) {
	library, err := s.newLibrary()
	if err != nil {
		return nil, nil, nil, err
	}
	listed = map[string]bool{}
	var (
		devices []specs.Device
		errs    []error
	)
	for _, gpu := range machine.GPUs {
		device, err := within(ctx, s, func() (specs.Device, error) { return s.describe(library, gpu) })
		if err != nil {
			errs = append(errs, fmt.Errorf("GPU %s (minor %d) has no CDI device: %w", gpu.UUID, gpu.Minor, err))
			continue
		}
		devices = append(devices, device)
		listed[gpu.UUID] = true
	}
	failed = errors.Join(errs...)
	if len(devices) == 0 {
		return nil, nil, nil, failed
	}
	common, err := within(ctx, s, func() (*specs.ContainerEdits, error) { return s.commonEdits(library) })
	if err != nil {
		return nil, nil, nil, err
	}
	data, err = s.encode(devices, common)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("make the CDI specification: %w", err)
	}
	return data, listed, failed, nil
}

// within runs work that may hang in the driver under the timeout. A hung call cannot be stopped; its goroutine ends when
// the driver answers, and its result is dropped.
func within[T any](ctx context.Context, s *Specs, work func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.Timeout, fmt.Errorf("no answer from the driver within %v", s.options.Timeout))
	defer cancel()
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := work()
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

func (s *Specs) newLibrary() (nvcdi.Interface, error) {
	library, err := nvcdi.New(
		nvcdi.WithLogger(logger{s.options.Log}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(s.options.Library),
		nvcdi.WithDriverRoot(s.options.DriverRoot),
		nvcdi.WithDevRoot(s.options.DevRoot),
		nvcdi.WithNVIDIACDIHookPath(s.options.HookPath),
		nvcdi.WithVendor(s.options.Vendor),
		nvcdi.WithClass(class),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare nvcdi for the driver root %s: %w", s.options.DriverRoot, err)
	}
	return library, nil
}

func (s *Specs) describe(library nvcdi.Interface, gpu topology.GPU) (specs.Device, error) {
	described, err := library.GetDeviceSpecsByID(gpu.UUID)
	if err != nil {
		return specs.Device{}, err
	}
	if len(described) != 1 {
		return specs.Device{}, fmt.Errorf("nvcdi describes %d devices, want 1", len(described))
	}
	device := described[0]
	device.Name = gpu.UUID
	want := fmt.Sprintf("/dev/nvidia%d", gpu.Minor)
	if !slices.ContainsFunc(device.ContainerEdits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == want }) {
		return specs.Device{}, fmt.Errorf("there is no device node %s below %s: check that the NVIDIA driver is loaded (nvidia-smi makes the node) and --dev-root", want, s.options.DevRoot)
	}
	return device, nil
}

func (s *Specs) commonEdits(library nvcdi.Interface) (*specs.ContainerEdits, error) {
	edits, err := library.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("find the driver's files below %s: check that the NVIDIA driver is installed there, and --driver-root: %w", s.options.DriverRoot, err)
	}
	hasLibrary := slices.ContainsFunc(edits.Mounts, func(m *specs.Mount) bool { return strings.Contains(m.ContainerPath, "libcuda.so.") })
	hasControl := slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == "/dev/nvidiactl" })
	if !hasLibrary || !hasControl {
		return nil, fmt.Errorf("containers would get no driver (libcuda.so found below %s: %v, /dev/nvidiactl found below %s: %v): "+
			"check that the driver's files are complete; the last good CDI specification stays", s.options.DriverRoot, hasLibrary, s.options.DevRoot, hasControl)
	}
	return edits.ContainerEdits, nil
}

// encode sorts, turns paths of this process into paths of the host, and checks the result as a container runtime would.
func (s *Specs) encode(devices []specs.Device, common *specs.ContainerEdits) ([]byte, error) {
	slices.SortFunc(devices, func(a, b specs.Device) int { return strings.Compare(a.Name, b.Name) })
	built, err := nvspec.New(
		nvspec.WithVendor(s.options.Vendor), nvspec.WithClass(class),
		nvspec.WithDeviceSpecs(devices), nvspec.WithEdits(*common), nvspec.WithNoSimplify(false),
	)
	if err != nil {
		return nil, err
	}
	spec := built.Raw()
	if s.options.DriverRoot != s.options.DriverRootOnHost {
		transformer := root.New(root.WithRoot(s.options.DriverRoot), root.WithTargetRoot(s.options.DriverRootOnHost), root.WithRelativeTo("host"))
		if err := transformer.Transform(spec); err != nil {
			return nil, fmt.Errorf("translate paths to the host's: %w", err)
		}
	}
	sortEdits(&spec.ContainerEdits)
	for i := range spec.Devices {
		sortEdits(&spec.Devices[i].ContainerEdits)
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return nil, err
	}
	spec.Version = version
	data, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := checkSpec(data); err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// sortEdits makes the bytes independent of the order in which files were found. Hooks keep their order: they run in it.
func sortEdits(edits *specs.ContainerEdits) {
	slices.Sort(edits.Env)
	slices.SortFunc(edits.DeviceNodes, func(a, b *specs.DeviceNode) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(edits.Mounts, func(a, b *specs.Mount) int {
		if c := strings.Compare(a.ContainerPath, b.ContainerPath); c != 0 {
			return c
		}
		return strings.Compare(a.HostPath, b.HostPath)
	})
}

// checkSpec is the container runtime's own validation.
func checkSpec(data []byte) error {
	parsed, err := cdiapi.ParseSpec(data)
	if err != nil {
		return err
	}
	for _, device := range parsed.Devices {
		if err := (&cdiapi.ContainerEdits{ContainerEdits: &device.ContainerEdits}).Validate(); err != nil {
			return fmt.Errorf("device %s: %w", device.Name, err)
		}
	}
	return (&cdiapi.ContainerEdits{ContainerEdits: &parsed.ContainerEdits}).Validate()
}

// logger lets nvcdi write to our log. Its talk about each file is detail.
type logger struct{ klog.Logger }

func (l logger) Debugf(format string, args ...any)   { l.V(6).Info(fmt.Sprintf(format, args...)) }
func (l logger) Tracef(format string, args ...any)   { l.V(7).Info(fmt.Sprintf(format, args...)) }
func (l logger) Infof(format string, args ...any)    { l.V(5).Info(fmt.Sprintf(format, args...)) }
func (l logger) Info(args ...any)                    { l.V(5).Info(fmt.Sprint(args...)) }
func (l logger) Warning(args ...any)                 { l.V(4).Info(fmt.Sprint(args...)) }
func (l logger) Warningf(format string, args ...any) { l.V(4).Info(fmt.Sprintf(format, args...)) }
func (l logger) Errorf(format string, args ...any) {
	l.Error(nil, fmt.Sprintf(format, args...))
}
