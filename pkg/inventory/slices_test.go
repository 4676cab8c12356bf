package inventory_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"tessera.dev/tessera/pkg/inventory"
	"tessera.dev/tessera/pkg/topology"
)

// machineOf makes a machine with n GPUs that have every fact.
func machineOf(n int) topology.Machine {
	m := topology.Machine{DriverVersion: "550.163.01", CUDADriverVersion: "12.4"}
	for i := range n {
		ecc, node, socket := i%2 == 0, i%4, i%2
		m.GPUs = append(m.GPUs, topology.GPU{
			UUID: fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i), Minor: i, Index: n - 1 - i,
			ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", CUDAComputeCapability: "9.0",
			MemoryBytes: 81559 << 20, ECCEnabled: &ecc, VBIOS: "96.00.74.00.01",
			PCI: topology.PCI{
				BusID: fmt.Sprintf("0000:%02x:00.0", i+16), Root: fmt.Sprintf("pci0000:%02x", i/2), Switch: fmt.Sprintf("0000:%02x:01.0", i/2),
				NUMANode: &node, CPUSocket: &socket,
			},
		})
	}
	return m
}

func encode(t *testing.T, pool []inventory.Slice) string {
	t.Helper()
	data, err := json.Marshal(pool)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func devicesOf(pool []inventory.Slice) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, slice := range pool {
		devices = append(devices, slice.Devices...)
	}
	return devices
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ gpus, slices int }{
		{0, 1}, {1, 1}, {2, 1}, {8, 1}, {16, 1}, {32, 1}, {33, 2}, {64, 2}, {65, 3}, {128, 4},
	} {
		t.Run(fmt.Sprint(test.gpus), func(t *testing.T) {
			t.Parallel()
			pool := inventory.Slices(machineOf(test.gpus))
			wantWithinLimits(t, pool)
			if len(pool) != test.slices {
				t.Errorf("%d slices, want %d", len(pool), test.slices)
			}
			var want []string
			for _, kind := range []inventory.Kind{inventory.KindGPU, inventory.KindMonitor} {
				for minor := range test.gpus {
					want = append(want, inventory.DeviceName(kind, minor))
				}
			}
			var got []string
			for _, device := range devicesOf(pool) {
				got = append(got, device.Name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("the devices are %v, want %v", got, want)
			}
		})
	}
}

// TestTaintedMachine puts as many taints as the API allows on all devices of a 16-GPU machine, which must still publish.
func TestTaintedMachine(t *testing.T) {
	t.Parallel()
	pool := inventory.Slices(machineOf(16))
	for _, slice := range pool {
		for i := range slice.Devices {
			slice.Devices[i].Taints = make([]resourceapi.DeviceTaint, resourceapi.DeviceTaintsMaxLength)
		}
	}
	wantWithinLimits(t, pool)
}

func TestOrderOfGPUsDoesNotMatter(t *testing.T) {
	t.Parallel()
	m := machineOf(40)
	want := encode(t, inventory.Slices(m))
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		shuffled := m
		shuffled.GPUs = slices.Clone(m.GPUs)
		random.Shuffle(len(shuffled.GPUs), reflect.Swapper(shuffled.GPUs))
		given := slices.Clone(shuffled.GPUs)
		if got := encode(t, inventory.Slices(shuffled)); got != want {
			t.Fatalf("another order of GPUs gives other slices:\n%s\nnot\n%s", got, want)
		}
		if !reflect.DeepEqual(given, shuffled.GPUs) {
			t.Fatal("Slices changed the machine that it was given")
		}
	}
}

func TestLostGPUChangesNoOther(t *testing.T) {
	t.Parallel()
	m := machineOf(9)
	all := devicesOf(inventory.Slices(m))
	for lost := range m.GPUs {
		fewer := m
		fewer.GPUs = slices.Delete(slices.Clone(m.GPUs), lost, lost+1)
		got := devicesOf(inventory.Slices(fewer))
		want := slices.DeleteFunc(slices.Clone(all), func(d resourceapi.Device) bool {
			return d.Name == inventory.DeviceName(inventory.KindGPU, lost) || d.Name == inventory.DeviceName(inventory.KindMonitor, lost)
		})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("without GPU %d the others are\n%v\nwant\n%v", lost, got, want)
		}
	}
}

// TestNamesAreUnique gives a machine that discovery never gives: the pool must not become invalid all the same.
func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	m := machineOf(4)
	m.GPUs[3].Minor = 1
	m.GPUs[2].Minor = -1
	want := encode(t, inventory.Slices(m))
	slices.Reverse(m.GPUs)
	pool := inventory.Slices(m)
	wantWithinLimits(t, pool)
	if got := encode(t, pool); got != want {
		t.Errorf("the order of GPUs matters: %s, then %s", want, got)
	}
	if n := len(devicesOf(pool)); n != 4 {
		t.Errorf("%d devices, want 4", n)
	}
}

func TestAllFacts(t *testing.T) {
	t.Parallel()
	devices := devicesOf(inventory.Slices(machineOf(1)))
	want := `{"attributes":{` +
		`"architecture":{"string":"Hopper"},"brand":{"string":"Nvidia"},"cpuSocket":{"int":0},"cudaComputeCapability":{"version":"9.0.0"},` +
		`"cudaDriverVersion":{"version":"12.4.0"},"driverVersion":{"version":"550.163.1"},"eccEnabled":{"bool":true},"index":{"int":0},` +
		`"minor":{"int":0},"pcieSwitch":{"string":"0000:00:01.0"},"productName":{"string":"NVIDIA H100 80GB HBM3"},` +
		`"resource.kubernetes.io/numaNode":{"int":0},"resource.kubernetes.io/pciBusID":{"string":"0000:10:00.0"},` +
		`"resource.kubernetes.io/pcieRoot":{"string":"pci0000:00"},"type":{"string":"TYPE"},` +
		`"uuid":{"string":"GPU-00000000-0000-4000-8000-000000000000"},"vbios":{"string":"96.00.74.00.01"}},"capacity":CAPACITY"name":"NAME"}`
	for i, words := range [][]string{
		{"TYPE", "gpu", "CAPACITY", `{"memory":{"value":"81559Mi"}},`, "NAME", "gpu-0"},
		{"TYPE", "monitor", `"capacity":CAPACITY`, "", "NAME", "gpu-0-monitor"},
	} {
		data, err := json.Marshal(devices[i])
		if err != nil {
			t.Fatal(err)
		}
		// The encoder sorts the fields by their place in the type: compare without order.
		if !sameJSON(t, string(data), strings.NewReplacer(words...).Replace(want)) {
			t.Errorf("device %d is\n%s", i, data)
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var values [2]any
	for i, text := range []string{a, b} {
		if err := json.Unmarshal([]byte(text), &values[i]); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// TestUnknownFacts has a GPU of which nothing is known but what discovery insists on.
func TestUnknownFacts(t *testing.T) {
	t.Parallel()
	m := topology.Machine{GPUs: []topology.GPU{{UUID: "GPU-1", Minor: 2, ProductName: "Tesla T4", MemoryBytes: 1 << 30}}}
	pool := inventory.Slices(m)
	wantWithinLimits(t, pool)
	for _, device := range devicesOf(pool) {
		var names []string
		for name := range device.Attributes {
			names = append(names, string(name))
		}
		slices.Sort(names)
		if want := []string{"index", "minor", "productName", "type", "uuid"}; !slices.Equal(names, want) {
			t.Errorf("%s has the attributes %v, want %v", device.Name, names, want)
		}
	}
	m.GPUs[0].MemoryBytes = 0
	if capacity := devicesOf(inventory.Slices(m))[0].Capacity; capacity != nil {
		t.Errorf("the memory's size is unknown, and the capacity is %v", capacity)
	}
}

func TestLongStrings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ product, want string }{
		"as long as allowed": {strings.Repeat("x", 64), strings.Repeat("x", 64)},
		"too long":           {strings.Repeat("x", 65), strings.Repeat("x", 64)},
		"cut in a character": {strings.Repeat("x", 63) + "é", strings.Repeat("x", 63)},
		"not a text":         {"GPU \xff1", "GPU 1"},
		"only bytes":         {"\xff\xfe", ""},
	} {
		m := machineOf(1)
		m.GPUs[0].ProductName = test.product
		pool := inventory.Slices(m)
		wantWithinLimits(t, pool)
		got := ""
		if value := devicesOf(pool)[0].Attributes[inventory.AttributeProductName].StringValue; value != nil {
			got = *value
		}
		if got != test.want {
			t.Errorf("%s: the product name is %q, want %q", name, got, test.want)
		}
	}
	m := machineOf(1)
	m.GPUs[0].VBIOS = strings.Repeat("9", 65)
	m.GPUs[0].PCI.Root = strings.Repeat("p", 65)
	device := devicesOf(inventory.Slices(m))[0]
	for _, name := range []resourceapi.QualifiedName{inventory.AttributeVBIOS, "resource.kubernetes.io/pcieRoot"} {
		if value, ok := device.Attributes[name]; ok {
			t.Errorf("%s is too long to tell things apart by a part of it, and is %v", name, value)
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"550.163.01": "550.163.1", "535.54.03": "535.54.3", "470.57": "470.57.0", "580": "580.0.0", "000.00.0": "0.0.0",
		"12.4": "12.4.0", "9223372036854775807.1": "9223372036854775807.1.0",
		"": "", ".": "", "550.": "", "550..1": "", "1.2.3.4": "", "r550": "", "550.163.01-beta": "", "-1.2": "", "+1.2": "", "1 .2": "",
		"99999999999999999999.1": "", "550.163.０１": "", "1e3": "", "0x10": "", "1_0": "",
	} {
		m := machineOf(1)
		m.DriverVersion, m.CUDADriverVersion, m.GPUs[0].CUDAComputeCapability = version, version, version
		pool := inventory.Slices(m)
		wantWithinLimits(t, pool)
		for _, name := range []resourceapi.QualifiedName{
			inventory.AttributeDriverVersion, inventory.AttributeCUDADriverVersion, inventory.AttributeCUDAComputeCapability,
		} {
			got := ""
			if value := devicesOf(pool)[0].Attributes[name].VersionValue; value != nil {
				got = *value
			}
			if got != want {
				t.Errorf("%s of %q is %q, want %q", name, version, got, want)
			}
		}
	}
}

// FuzzSlices gives facts of any kind: nothing panics and the API takes the result.
func FuzzSlices(f *testing.F) {
	f.Add("550.163.01", "12.4", "NVIDIA H100 80GB HBM3", "96.00.74.00.01", "GPU-1", "0000:1b:00.0", "pci0000:16", 3, uint64(1)<<36, 0)
	f.Add("", "", "", "", "", "", "", -1, uint64(1)<<63, -1)
	f.Add("1.2.3.4", "x", strings.Repeat("é", 40), "\xff", strings.Repeat("u", 65), "\x00", "a/b", 1<<40, uint64(0), 1<<20)
	f.Fuzz(func(t *testing.T, driver, cuda, product, vbios, uuid, busID, root string, minor int, memory uint64, node int) {
		gpu := topology.GPU{
			UUID: uuid, Minor: minor, Index: node, ProductName: product, Brand: vbios, Architecture: root, CUDAComputeCapability: cuda,
			MemoryBytes: memory, VBIOS: vbios, PCI: topology.PCI{BusID: busID, Root: root, Switch: busID, NUMANode: &node, CPUSocket: &minor},
		}
		pool := inventory.Slices(topology.Machine{DriverVersion: driver, CUDADriverVersion: cuda, GPUs: []topology.GPU{gpu, gpu}})
		wantWithinLimits(t, pool)
	})
}
