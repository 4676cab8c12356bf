package sim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml/sim"
)

// machine makes a machine in memory from one of the package's profiles.
func machine(t *testing.T, profile string) *sim.Machine {
	t.Helper()
	return machineWith(t, profile, sim.Options{Seed: "node-a"})
}

func machineWith(t *testing.T, profile string, o sim.Options) *sim.Machine {
	t.Helper()
	p, err := sim.LoadProfile(profile)
	if err != nil {
		t.Fatal(err)
	}
	m, err := sim.New(p, o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// initialised gives the machine's library after Init.
func initialised(t *testing.T, m *sim.Machine) nvml.Interface {
	t.Helper()
	library := m.NVML()
	wantReturn(t, "Init", library.Init(), nvml.SUCCESS)
	t.Cleanup(func() { library.Shutdown() })
	return library
}

// minors lists the minor numbers in the order of the enumeration. The library must be initialised.
func minors(t *testing.T, library nvml.Interface) []int {
	t.Helper()
	count, ret := library.DeviceGetCount()
	wantReturn(t, "DeviceGetCount", ret, nvml.SUCCESS)
	var found []int
	for i := range count {
		device, ret := library.DeviceGetHandleByIndex(i)
		wantReturn(t, "DeviceGetHandleByIndex", ret, nvml.SUCCESS)
		minor, ret := device.GetMinorNumber()
		wantReturn(t, "GetMinorNumber", ret, nvml.SUCCESS)
		found = append(found, minor)
	}
	return found
}

func wantReturn(t *testing.T, call string, got, want nvml.Return) {
	t.Helper()
	if got != want {
		t.Fatalf("%s returned %s, want %s", call, sim.ReturnName(got), sim.ReturnName(want))
	}
}

func deviceNode(minor int) string { return fmt.Sprintf("/dev/nvidia%d", minor) }

// smallBinary stands for the static nvidia-smi where only its presence matters.
func smallBinary(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(name, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}
