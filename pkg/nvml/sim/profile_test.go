package sim_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml/sim"
)

func TestEveryProfileIsAMachine(t *testing.T) {
	want := map[string]int{ // the machines that the design names, and how many GPUs each has
		"dgx-a100": 8, "dgx-h100": 8, "dgx-h200": 8, "dgx-b200": 8, "gb200-nvl72": 4, "l40s-pcie-8": 8, "t4-4": 4, "a30-2": 2,
		"v100-hybrid-cube": 8, "h100-nvl-pairs": 8, "rtx-pro-6000": 8, "hgx-16": 16,
	}
	names := sim.ProfileNames()
	if len(names) != len(want) || !slices.IsSorted(names) {
		t.Fatalf("profiles %v, want the %d of the design, sorted", names, len(want))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			p, err := sim.LoadProfile(name)
			if err != nil {
				t.Fatal(err)
			}
			if p.Name != name {
				t.Errorf("the profile calls itself %q", p.Name)
			}
			if len(p.GPUs) != want[name] {
				t.Errorf("%d GPUs, want %d", len(p.GPUs), want[name])
			}
			buses := make([]string, 0, len(p.GPUs))
			for _, gpu := range p.GPUs {
				buses = append(buses, gpu.BusID)
			}
			if !slices.IsSorted(buses) {
				t.Errorf("NVML enumerates by bus id, the profile does not: %v", buses)
			}
			library := initialised(t, machine(t, name))
			if count, ret := library.DeviceGetCount(); ret != nvml.SUCCESS || count != want[name] {
				t.Errorf("NVML counts %d (%s)", count, sim.ReturnName(ret))
			}
		})
	}
}

// TestMinorsAreNotIndices keeps a machine on which code that confuses the two fails.
func TestMinorsAreNotIndices(t *testing.T) {
	for _, name := range []string{"l40s-pcie-8", "t4-4"} {
		library := initialised(t, machine(t, name))
		if found := minors(t, library); slices.IsSorted(found) {
			t.Errorf("%s: the minor numbers are in the order of the indices: %v", name, found)
		}
	}
}

func TestLoadProfileFromFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mine.yaml")
	if err := os.WriteFile(path, []byte(goodProfile), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := sim.LoadProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "two" || len(p.GPUs) != 2 {
		t.Errorf("read %q with %d GPUs", p.Name, len(p.GPUs))
	}
	for argument, want := range map[string]string{
		filepath.Join(dir, "none.yaml"): "no such file",
		"dgx-h1000":                     "dgx-h100",
		"../dgx-h100":                   "no such file",
	} {
		if _, err := sim.LoadProfile(argument); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadProfile(%q): %v, want an error with %q", argument, err, want)
		}
	}
}

const goodProfile = `name: two
driverVersion: "550.163.01"
nvmlVersion: "12.550.163.01"
cudaDriverVersion: "12.4"
product:
  name: NVIDIA L4
  brand: Nvidia
  architecture: Ada Lovelace
  computeCapability: "8.9"
  memoryMiB: 23034
  pciDeviceID: 0x27b810de
  vbios: 95.04.29.00.06
  ecc: true
numaNodes:
  - {socket: 0, cpus: "0-3"}
  - {socket: 1}
gpus:
  - {minor: 1, pci: {root: "pci0000:15", bridges: ["0000:15:01.0", "0000:16:00.0", "0000:17:00.0"], busID: "0000:18:00.0", numaNode: 0}}
  - {minor: 0, pci: {root: "pci0000:15", bridges: ["0000:15:01.0", "0000:16:00.0", "0000:17:01.0"], busID: "0000:19:00.0", numaNode: 0}}
`

// badProfile is goodProfile with one text replaced, and a part of the error that it gives.
type badProfile struct{ from, to, want string }

func badProfiles() map[string]badProfile {
	gpus := goodProfile[strings.Index(goodProfile, "gpus:"):]
	const bridges = `["0000:15:01.0", "0000:16:00.0", "0000:17:01.0"]`
	return map[string]badProfile{
		"unknown field":            {"ecc: true", "eec: true", "bad.yaml:13: product.eec: unknown field"},
		"unknown top field":        {"gpus:", "cards: 3\ngpus:", "bad.yaml:17: cards: unknown field"},
		"unknown field of a GPU":   {"{minor: 0,", "{minor: 0, index: 3,", "bad.yaml:19: gpus[1].index: unknown field"},
		"field twice":              {"name: two", "name: two\nname: two", "bad.yaml:2: name: given twice"},
		"missing field":            {"  memoryMiB: 23034\n", "", "product.memoryMiB: missing"},
		"missing bus id":           {`, busID: "0000:19:00.0"`, "", "bad.yaml:19: gpus[1].pci.busID: missing"},
		"missing GPUs":             {gpus, "", "bad.yaml:1: gpus: missing"},
		"no GPU":                   {gpus, "gpus: []\n", "bad.yaml:17: gpus: the machine has no GPU"},
		"GPUs are not a list":      {gpus, "gpus: 8\n", "bad.yaml:17: gpus: want a list"},
		"a GPU is a text":          {gpus, "gpus: [one]\n", "bad.yaml:17: gpus[0]: want fields"},
		"minor twice":              {"minor: 0", "minor: 1", "bad.yaml:19: gpus[1].minor: minor 1 is already that of gpus[0]"},
		"minor negative":           {"minor: 0", "minor: -1", "bad.yaml:19: gpus[1].minor: -1 is outside"},
		"minor too large":          {"minor: 0", "minor: 255", "bad.yaml:19: gpus[1].minor: 255 is outside"},
		"minor is a text":          {"minor: 0", "minor: zero", "bad.yaml:19: gpus[1].minor: want a whole number"},
		"bus id twice":             {"0000:19:00.0", "0000:18:00.0", "bad.yaml:19: gpus[1].pci.busID: 0000:18:00.0 is already"},
		"bus id without a domain":  {"0000:19:00.0", "19:00.0", "bad.yaml:19: gpus[1].pci.busID: \"19:00.0\": want a bus id"},
		"bus id as NVML has it":    {"0000:19:00.0", "00000000:19:00.0", "bad.yaml:19: gpus[1].pci.busID"},
		"bus id in capitals":       {"0000:19:00.0", "0000:1B:00.0", "bad.yaml:19: gpus[1].pci.busID"},
		"bus id function":          {"0000:19:00.0", "0000:19:00.8", "bad.yaml:19: gpus[1].pci.busID"},
		"bus id of a bridge":       {"0000:19:00.0", "0000:16:00.0", "bad.yaml:19: gpus[1].pci.bridges: 0000:16:00.0 is the GPU itself"},
		"root form":                {`"pci0000:15", bridges: ["0000:15:01.0", "0000:16:00.0", "0000:17:01.0"]`, `"0000:15", bridges: ["0000:15:01.0", "0000:16:00.0", "0000:17:01.0"]`, "bad.yaml:19: gpus[1].pci.root"},
		"root port elsewhere":      {bridges, `["0000:25:01.0", "0000:26:00.0", "0000:27:01.0"]`, "bad.yaml:19: gpus[1].pci.bridges[0]: the root port 0000:25:01.0 is not on"},
		"switch at two places":     {bridges, `["0000:15:02.0", "0000:16:00.0", "0000:17:01.0"]`, "bad.yaml:19: gpus[1].pci.bridges: 0000:16:00.0 is below"},
		"half a switch":            {bridges, `["0000:15:01.0", "0000:16:00.0"]`, "bad.yaml:19: gpus[1].pci.bridges: 2 bridges"},
		"no bridge":                {bridges, `[]`, "bad.yaml:19: gpus[1].pci.bridges: 0 bridges"},
		"NUMA node out of range":   {`"0000:19:00.0", numaNode: 0`, `"0000:19:00.0", numaNode: 2`, "bad.yaml:19: gpus[1].pci.numaNode: there is no NUMA node 2"},
		"NUMA node negative":       {`"0000:19:00.0", numaNode: 0`, `"0000:19:00.0", numaNode: -1`, "bad.yaml:19: gpus[1].pci.numaNode: -1 is outside"},
		"CPU twice":                {"{socket: 1}", "{socket: 1, cpus: \"3-5\"}", "bad.yaml:16: numaNodes[1].cpus: CPU 3 is already in"},
		"CPU range backwards":      {`"0-3"`, `"3-0"`, "bad.yaml:15: numaNodes[0].cpus"},
		"CPU list form":            {`"0-3"`, `"all"`, "bad.yaml:15: numaNodes[0].cpus"},
		"absurd CPU range":         {`"0-3"`, `"0-9999999999"`, "bad.yaml:15: numaNodes[0].cpus"},
		"name form":                {"name: two", "name: Two GPUs", "bad.yaml:1: name:"},
		"driver version form":      {`driverVersion: "550.163.01"`, "driverVersion: latest", "bad.yaml:2: driverVersion:"},
		"CUDA version form":        {`"12.4"`, `"12.4.1"`, "bad.yaml:4: cudaDriverVersion:"},
		"brand":                    {"brand: Nvidia", "brand: ATI", "bad.yaml:7: product.brand: \"ATI\": want one of"},
		"architecture":             {"architecture: Ada Lovelace", "architecture: Turbo", "bad.yaml:8: product.architecture"},
		"compute capability":       {`"8.9"`, `"sm_89"`, "bad.yaml:9: product.computeCapability"},
		"no memory":                {"23034", "0", "bad.yaml:10: product.memoryMiB: 0 is outside"},
		"absurd memory":            {"23034", "99999999999999999999", "bad.yaml:10: product.memoryMiB"},
		"other vendor":             {"0x27b810de", "0x27b81002", "bad.yaml:11: product.pciDeviceID: the lower 16 bits"},
		"VBIOS form":               {"95.04.29.00.06", "95.04", "bad.yaml:12: product.vbios"},
		"ECC is a text":            {"ecc: true", "ecc: perhaps", "bad.yaml:13: product.ecc: want true or false"},
		"too many MIG devices":     {"ecc: true", "maxMIGDevices: 9", "bad.yaml:13: product.maxMIGDevices: 9 is outside"},
		"name of the product long": {"NVIDIA L4", strings.Repeat("x", 64), "bad.yaml:6: product.name: 64 characters"},
		"name of the product null": {"name: NVIDIA L4", "name:", "bad.yaml:6: product.name: want a text, found nothing"},
		"fabric id":                {"numaNodes:", "fabric: {clusterUUID: none, cliqueID: 1}\nnumaNodes:", "bad.yaml:14: fabric.clusterUUID"},
		"fabric id zero":           {"numaNodes:", "fabric: {clusterUUID: 00000000-0000-0000-0000-000000000000, cliqueID: 1}\nnumaNodes:", "bad.yaml:14: fabric.clusterUUID"},
		"clique missing":           {"numaNodes:", "fabric: {clusterUUID: 7c2f5a4e-0d1b-4f55-9a6e-3b8f1c2d4e60}\nnumaNodes:", "bad.yaml:14: fabric.cliqueID: missing"},
		"not YAML":                 {"name: two", "name: [two", "bad.yaml: not YAML: "},
		"empty":                    {goodProfile, "", "bad.yaml:1: the profile is empty"},
		"a list":                   {goodProfile, "[]", "bad.yaml:1: want fields"},
	}
}

func TestParseProfileNamesTheLine(t *testing.T) {
	if _, err := sim.ParseProfile([]byte(goodProfile), "good.yaml"); err != nil {
		t.Fatal(err)
	}
	for name, test := range badProfiles() {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(goodProfile, test.from) {
				t.Fatalf("the good profile lacks %q", test.from)
			}
			bad := strings.Replace(goodProfile, test.from, test.to, 1)
			p, err := sim.ParseProfile([]byte(bad), "bad.yaml")
			if err == nil || p != nil {
				t.Fatalf("accepted:\n%s", bad)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q, want %q in it", err, test.want)
			}
		})
	}
}

func TestParseProfileTellsEveryError(t *testing.T) {
	bad := strings.NewReplacer("brand: Nvidia", "brand: ATI", "minor: 0", "minor: 1").Replace(goodProfile)
	_, err := sim.ParseProfile([]byte(bad), "bad.yaml")
	if err == nil || !strings.Contains(err.Error(), "bad.yaml:7:") || !strings.Contains(err.Error(), "bad.yaml:19:") {
		t.Errorf("error %v, want lines 7 and 19", err)
	}
}

// FuzzParseProfile: no input panics, and what is accepted makes a machine whose GPUs NVML tells as the profile does.
func FuzzParseProfile(f *testing.F) {
	f.Add([]byte(goodProfile))
	f.Add([]byte("gpus: &a [*a]"))
	f.Add([]byte("<<: {name: x}\n? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := sim.ParseProfile(data, "fuzz.yaml")
		if err != nil {
			if p != nil {
				t.Fatal("both a profile and an error")
			}
			return
		}
		m, err := sim.New(p, sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		library := initialised(t, m)
		for i, minor := range minors(t, library) {
			if minor != p.GPUs[i].Minor {
				t.Fatalf("GPU %d has minor %d, want %d", i, minor, p.GPUs[i].Minor)
			}
			device, ret := library.DeviceGetHandleByPciBusId(p.GPUs[i].BusID)
			wantReturn(t, "DeviceGetHandleByPciBusId", ret, nvml.SUCCESS)
			if _, ret := device.GetPciInfo(); ret != nvml.SUCCESS {
				t.Fatalf("GetPciInfo: %s", sim.ReturnName(ret))
			}
		}
		if _, ret := library.SystemGetCudaDriverVersion(); ret != nvml.SUCCESS {
			t.Fatalf("the CUDA version %q cannot be told", p.CUDADriverVersion)
		}
	})
}
