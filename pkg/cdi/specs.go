// Package cdi describes the node's GPUs to container runtimes through the Container Device Interface.
//
// One base specification of kind VENDOR/gpu holds the driver's files and hooks once and each GPU's device nodes, made by
// NVIDIA's nvcdi. A whole GPU needs nothing else: its CDI name is its UUID, so a name always means the same GPU.
package cdi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"tessera.dev/tessera/pkg/topology"
)

// class is the CDI class of whole GPUs.
const class = "gpu"

// Options say where things are.
type Options struct {
	// Dir is where the container runtime reads specifications, for example /var/run/cdi.
	Dir string
	// Vendor is the CDI vendor, for example gpu.tessera.dev.
	Vendor string
	// Library is the NVML that nvcdi asks; it is initialised already.
	Library gonvml.Interface
	// DriverRoot is the driver's installation as this process sees it, DriverRootOnHost as container runtimes see it.
	DriverRoot, DriverRootOnHost string
	// DevRoot holds dev/ with the device nodes; it has the same path here and on the host, or lies in DriverRoot.
	DevRoot string
	// HookPath is nvidia-cdi-hook on the host.
	HookPath string
	// Timeout limits the questions to one GPU; 0 means 10 s.
	Timeout time.Duration
	Log     klog.Logger
}

// Specs writes the base specification. It is safe for concurrent use.
type Specs struct {
	options Options

	mu      sync.Mutex
	machine topology.Machine
	// written is what the file must hold, and listed the GPUs in it.
	written []byte
	listed  map[string]bool
}

// New checks the options; it writes nothing.
func New(o Options) (*Specs, error) {
	if err := errors.Join(parser.ValidateVendorName(o.Vendor), parser.ValidateClassName(class)); err != nil {
		return nil, fmt.Errorf("CDI vendor %q: %w", o.Vendor, err)
	}
	if o.Dir == "" || o.Library == nil || o.HookPath == "" {
		return nil, errors.New("the CDI directory, the NVML library and the path of nvidia-cdi-hook must be set")
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	return &Specs{options: o}, nil
}

// DeviceID is the name that the kubelet passes to the container runtime for a whole GPU.
func (s *Specs) DeviceID(uuid string) string {
	return parser.QualifiedName(s.options.Vendor, class, uuid)
}

// Path is the base specification's file.
func (s *Specs) Path() string {
	return filepath.Join(s.options.Dir, s.options.Vendor+"-"+class+".json")
}

// WriteBase describes all GPUs of the machine and writes the file if its bytes differ from what is there. A GPU that
// nvcdi cannot describe is left out and named in the error; the others are written all the same. When the driver's
// files are missing nothing is written and the old file stays.
func (s *Specs) WriteBase(ctx context.Context, machine topology.Machine) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeBase(ctx, machine)
}

func (s *Specs) writeBase(ctx context.Context, machine topology.Machine) (bool, error) {
	s.machine = machine
	if len(machine.GPUs) == 0 {
		// A specification without devices is not valid. Without GPUs nothing is prepared either.
		s.written, s.listed = nil, nil
		return removeFile(s.Path())
	}
	data, listed, failed, err := s.generate(ctx, machine)
	if err != nil {
		return false, err
	}
	changed, err := writeFile(s.Path(), data)
	if err != nil {
		return false, fmt.Errorf("write the CDI specification %s: check that the directory exists on the host, is writable and not full: %w", s.Path(), err)
	}
	s.written, s.listed = data, listed
	return changed, failed
}

// EnsureGPU makes sure that the file on disk describes the GPU, and writes it again if it is gone or was changed: it
// lies on a tmpfs that a reboot empties, and others may delete it.
func (s *Specs) EnsureGPU(ctx context.Context, uuid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listed[uuid] {
		onDisk, err := os.ReadFile(s.Path())
		if err == nil && bytes.Equal(onDisk, s.written) {
			return nil
		}
	}
	if !slices.ContainsFunc(s.machine.GPUs, func(g topology.GPU) bool { return g.UUID == uuid }) {
		return fmt.Errorf("GPU %s was not there at the last discovery, so it has no CDI device", uuid)
	}
	_, err := s.writeBase(ctx, s.machine)
	if s.listed[uuid] {
		// What failed, if anything, concerns other GPUs; discovery reports them.
		return nil
	}
	return err
}

func removeFile(path string) (bool, error) {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove the CDI specification of GPUs that are gone: %w", err)
	}
	return true, nil
}

// writeFile replaces the file as a whole if its content differs.
func writeFile(path string, data []byte) (changed bool, err error) {
	if onDisk, err := os.ReadFile(path); err == nil && bytes.Equal(onDisk, data) {
		return false, nil
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	// The runtime reads *.json and *.yaml only, so it does not see the temporary file.
	file, err := os.CreateTemp(dir, "."+strings.TrimSuffix(filepath.Base(path), ".json")+"-*.tmp")
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	if _, err := file.Write(data); err != nil {
		return false, err
	}
	if err := file.Chmod(0o644); err != nil {
		return false, err
	}
	if err := file.Sync(); err != nil {
		return false, err
	}
	if err := file.Close(); err != nil {
		return false, err
	}
	return true, os.Rename(file.Name(), path)
}
