package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/nvml/sim"
)

// machineAccess is how this process reaches the GPUs and the driver's files.
type machineAccess struct {
	library gonvml.Interface
	// driverRoot is where this process sees the driver's files, driverRootOnHost where container runtimes see them.
	driverRoot, driverRootOnHost string
	// devRoot holds dev/ with the device nodes, as this process sees it.
	devRoot   string
	sysfsRoot string
}

// access opens the real driver or the simulated machine. simDir gets the simulated driver root.
func (o *hardwareOptions) access() (machineAccess, error) {
	profile, simulated, err := o.simProfile()
	if err != nil {
		return machineAccess{}, err
	}
	if simulated {
		return o.accessSimulation(profile)
	}
	root := o.driverRootInContainer
	if root == "" {
		root = o.driverRoot
	}
	library, err := findLibrary(root)
	if err != nil {
		return machineAccess{}, err
	}
	devRoot := o.devRoot
	if devRoot == "" {
		devRoot = "/"
		if _, err := os.Stat(filepath.Join(root, "dev", "nvidiactl")); err == nil {
			devRoot = root
		}
	}
	return machineAccess{
		library:          gonvml.New(gonvml.WithLibraryPath(library)),
		driverRoot:       root,
		driverRootOnHost: o.driverRoot,
		devRoot:          devRoot,
		sysfsRoot:        "/sys",
	}, nil
}

func (o *hardwareOptions) accessSimulation(profile string) (machineAccess, error) {
	machine, err := o.simulatedMachine(profile)
	if err != nil {
		return machineAccess{}, err
	}
	root := filepath.Join(o.simDir, "root")
	if err := machine.WriteDriverRoot(root, o.simNvidiaSMI); err != nil {
		return machineAccess{}, fmt.Errorf("write the simulated driver root %s: %w", root, err)
	}
	return machineAccess{
		library:          machine.NVML(),
		driverRoot:       root,
		driverRootOnHost: root,
		devRoot:          root,
		sysfsRoot:        filepath.Join(root, "sys"),
	}, nil
}

func (o *hardwareOptions) simulatedMachine(profile string) (*sim.Machine, error) {
	loaded, err := sim.LoadProfile(profile)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.simDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the simulated machine's directory: %w", err)
	}
	return sim.New(loaded, sim.Options{StateFile: filepath.Join(o.simDir, stateFile), Seed: o.nodeName})
}

// stateFile is the simulated machine's state below --sim-dir.
const stateFile = "state.json"

// findLibrary looks for NVML where distributions and the GPU operator put it.
func findLibrary(root string) (string, error) {
	const name = "libnvidia-ml.so.1"
	var tried []string
	for _, dir := range []string{
		"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib",
		"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/wsl/lib",
	} {
		path := filepath.Join(root, dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("look for NVML: %w", err)
		}
		tried = append(tried, path)
	}
	return "", fmt.Errorf("no %s below the driver root %s (tried %v): install the NVIDIA driver, set --driver-root to its place, "+
		"or use --nvml=sim:PROFILE for a simulated machine", name, root, tried)
}

func (o *hardwareOptions) open(ctx context.Context, access machineAccess) (*nvml.Hardware, error) {
	return nvml.Open(ctx, nvml.Options{Library: access.library, SysfsRoot: access.sysfsRoot, CallTimeout: o.callTimeout})
}
