package sim_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"

	"tessera.dev/tessera/pkg/nvml/sim"
)

// TestNVCDIReadsTheDriverRoot runs NVIDIA's own generator of CDI specs on every machine.
func TestNVCDIReadsTheDriverRoot(t *testing.T) {
	for _, name := range sim.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			m := machine(t, name)
			root := filepath.Join(t.TempDir(), "root")
			if err := m.WriteDriverRoot(root, smallBinary(t)); err != nil {
				t.Fatal(err)
			}
			library := m.NVML()
			cdi, err := nvcdi.New(
				nvcdi.WithLogger(silent{}), nvcdi.WithNvmlLib(library), nvcdi.WithDriverRoot(root), nvcdi.WithDevRoot(root), nvcdi.WithMode(nvcdi.ModeNvml),
				nvcdi.WithNVIDIACDIHookPath("/bin/true"), nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
			)
			if err != nil {
				t.Fatal(err)
			}
			if ret := library.Init(); ret != nvml.SUCCESS {
				t.Fatal(ret)
			}
			for _, minor := range minors(t, library) {
				specs, err := cdi.GetDeviceSpecsByID(m.UUID(minor))
				if err != nil || len(specs) == 0 {
					t.Fatalf("GPU with minor %d: %v, %d specs", minor, err, len(specs))
				}
				var nodes []string
				for _, node := range specs[0].ContainerEdits.DeviceNodes {
					nodes = append(nodes, node.Path)
				}
				if want := []string{deviceNode(minor)}; !slices.Equal(nodes, want) {
					t.Errorf("GPU with minor %d: device nodes %v, want %v", minor, nodes, want)
				}
			}
			common, err := cdi.GetCommonEdits()
			if err != nil {
				t.Fatal(err)
			}
			var paths []string
			for _, node := range common.DeviceNodes {
				paths = append(paths, node.Path)
			}
			for _, mount := range common.Mounts {
				paths = append(paths, mount.ContainerPath)
			}
			for _, want := range []string{
				"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/usr/bin/nvidia-smi",
				"libcuda.so.", "libnvidia-ml.so.",
			} {
				if !slices.ContainsFunc(paths, func(path string) bool { return strings.Contains(path, want) }) {
					t.Errorf("the common edits lack %s: %v", want, paths)
				}
			}
		})
	}
}

// silent keeps nvcdi's log out of the test's output.
type silent struct{}

func (silent) Debugf(string, ...any)   {}
func (silent) Errorf(string, ...any)   {}
func (silent) Infof(string, ...any)    {}
func (silent) Warningf(string, ...any) {}
func (silent) Tracef(string, ...any)   {}
