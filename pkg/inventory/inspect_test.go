package inventory_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"tessera.dev/tessera/pkg/inventory"
	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/nvml/sim"
	"tessera.dev/tessera/pkg/topology"
)

var update = flag.Bool("update", false, "write the files in testdata/inspect anew")

// goldenNode is the node of the golden files: the output of
//
//	dra-kubelet-plugin inspect --node-name node-a --nvml sim:PROFILE -o yaml (or table)
const goldenNode = "node-a"

// TestInspect compares what each simulated machine would publish with a reviewed file, and holds it against the API's limits.
func TestInspect(t *testing.T) {
	t.Parallel()
	for _, profile := range sim.ProfileNames() {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			machine := discover(t, profile)
			pool := inventory.Slices(machine)
			wantWithinLimits(t, pool)
			wantCommonAttributes(t, pool)
			var table bytes.Buffer
			if err := inventory.Table(&table, machine, pool); err != nil {
				t.Fatal(err)
			}
			wantGolden(t, profile+".txt", table.Bytes())
			wantGolden(t, profile+".yaml", manifests(t, pool))
		})
	}
	files, err := filepath.Glob("testdata/inspect/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		profile := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		if !slices.Contains(sim.ProfileNames(), profile) {
			t.Errorf("%s belongs to no profile: remove it", file)
		}
	}
}

// wantCommonAttributes checks for what DeviceClasses and the documented selectors use: one device that lacks it
// would abort the scheduling of every pod that selects on it.
func wantCommonAttributes(t *testing.T, pool []inventory.Slice) {
	t.Helper()
	for _, device := range devicesOf(pool) {
		for _, name := range []resourceapi.QualifiedName{
			inventory.AttributeType, inventory.AttributeUUID, inventory.AttributeIndex, inventory.AttributeMinor, inventory.AttributeProductName,
			inventory.AttributeBrand, inventory.AttributeArchitecture, inventory.AttributeCUDAComputeCapability, inventory.AttributeDriverVersion,
			inventory.AttributeCUDADriverVersion, "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot",
		} {
			if _, ok := device.Attributes[name]; !ok {
				t.Errorf("%s lacks the attribute %s", device.Name, name)
			}
		}
		_, hasMemory := device.Capacity[inventory.CapacityMemory]
		if isMonitor := strings.HasSuffix(device.Name, "-monitor"); hasMemory == isMonitor {
			t.Errorf("%s: capacity memory is there: %v", device.Name, hasMemory)
		}
	}
}

func discover(t *testing.T, profile string) topology.Machine {
	t.Helper()
	loaded, err := sim.LoadProfile(profile)
	if err != nil {
		t.Fatal(err)
	}
	simulated, err := sim.New(loaded, sim.Options{Seed: goldenNode})
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := simulated.WriteDriverRoot(root, ""); err != nil {
		t.Fatal(err)
	}
	hardware, err := nvml.Open(t.Context(), nvml.Options{Library: simulated.NVML(), SysfsRoot: filepath.Join(root, "sys")})
	if err != nil {
		t.Fatal(err)
	}
	machine, failures, err := hardware.Discover(t.Context())
	if err := errors.Join(err, hardware.Close(t.Context())); err != nil || len(failures) > 0 {
		t.Fatal(err, failures)
	}
	return machine
}

func manifests(t *testing.T, pool []inventory.Slice) []byte {
	t.Helper()
	var out bytes.Buffer
	node := goldenNode
	for i, slice := range pool {
		document, err := yaml.Marshal(resourceapi.ResourceSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driverName, NodeName: &node,
				Pool:    resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool))},
				Devices: slice.Devices, SharedCounters: slice.SharedCounters,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n%s", document)
	}
	return out.Bytes()
}

func wantGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata/inspect", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test ./pkg/inventory -update writes it; review it against the profile)", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test ./pkg/inventory -update writes it anew; review it against the profile); got\n%s\nwant\n%s", file, got, want)
	}
}
