package nvml_test

import (
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/nvml/sim"
	"tessera.dev/tessera/pkg/topology"
)

// TestDiscoverProfiles compares all facts that discovery reads from a machine with the profile that the machine was made of.
func TestDiscoverProfiles(t *testing.T) {
	t.Parallel()
	for _, name := range sim.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			simulated, library := simulate(t, name)
			root := t.TempDir()
			if err := simulated.WriteDriverRoot(root, ""); err != nil {
				t.Fatal(err)
			}
			hardware := openAt(t, library, filepath.Join(root, "sys"))
			defer closeHardware(t, hardware)

			got, failures := discover(t, hardware)
			if len(failures) > 0 {
				t.Errorf("failures: %v", failures)
			}
			if want := machineOf(loadProfile(t, name), simulated); !reflect.DeepEqual(got, want) {
				t.Errorf("got\n%s\nwant\n%s", describe(got), describe(want))
			}
			again, _ := discover(t, hardware)
			if !reflect.DeepEqual(got, again) {
				t.Errorf("a second look gives\n%s\nthe first gave\n%s", describe(again), describe(got))
			}
		})
	}
}

// machineOf is what must be discovered of a profile.
func machineOf(p *sim.Profile, simulated *sim.Machine) topology.Machine {
	brands := map[gonvml.BrandType]string{
		gonvml.BRAND_TESLA: "Tesla", gonvml.BRAND_NVIDIA: "Nvidia", gonvml.BRAND_NVIDIA_RTX: "NvidiaRTX",
		gonvml.BRAND_QUADRO: "Quadro", gonvml.BRAND_QUADRO_RTX: "QuadroRTX", gonvml.BRAND_GEFORCE: "GeForce",
	}
	architectures := map[gonvml.DeviceArchitecture]string{
		gonvml.DEVICE_ARCH_VOLTA: "Volta", gonvml.DEVICE_ARCH_TURING: "Turing", gonvml.DEVICE_ARCH_AMPERE: "Ampere",
		gonvml.DEVICE_ARCH_ADA: "Ada Lovelace", gonvml.DEVICE_ARCH_HOPPER: "Hopper", gonvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
	}
	m := topology.Machine{DriverVersion: p.DriverVersion, CUDADriverVersion: p.CUDADriverVersion}
	for i, g := range p.GPUs {
		gpu := topology.GPU{
			UUID: simulated.UUID(g.Minor), Minor: g.Minor, Index: i,
			ProductName: p.Product.Name, Brand: brands[p.Product.Brand], Architecture: architectures[p.Product.Architecture],
			CUDAComputeCapability: fmt.Sprintf("%d.%d", p.Product.ComputeMajor, p.Product.ComputeMinor),
			MemoryBytes:           p.Product.MemoryMiB << 20, ECCEnabled: p.Product.ECC, VBIOS: p.Product.VBIOS,
			PCI: topology.PCI{BusID: g.BusID, Root: g.Root, NUMANode: g.NUMANode},
		}
		// The profile lists the root port, then an upstream and a downstream port for each switch.
		if n := len(g.Bridges); n >= 3 {
			gpu.PCI.Switch = g.Bridges[n-2]
		}
		if g.NUMANode != nil {
			gpu.PCI.CPUSocket = &p.NUMANodes[*g.NUMANode].Socket
		}
		m.GPUs = append(m.GPUs, gpu)
	}
	slices.SortFunc(m.GPUs, func(a, b topology.GPU) int { return a.Minor - b.Minor })
	return m
}

func describe(m topology.Machine) string {
	lines := []string{m.DriverVersion + " CUDA " + m.CUDADriverVersion}
	for _, gpu := range m.GPUs {
		ecc, node, socket := "-", "-", "-"
		if gpu.ECCEnabled != nil {
			ecc = fmt.Sprint(*gpu.ECCEnabled)
		}
		if gpu.PCI.NUMANode != nil {
			node = fmt.Sprint(*gpu.PCI.NUMANode)
		}
		if gpu.PCI.CPUSocket != nil {
			socket = fmt.Sprint(*gpu.PCI.CPUSocket)
		}
		gpu.ECCEnabled, gpu.PCI.NUMANode, gpu.PCI.CPUSocket = nil, nil, nil
		lines = append(lines, fmt.Sprintf("%+v ecc=%s node=%s socket=%s", gpu, ecc, node, socket))
	}
	return strings.Join(lines, "\n")
}

func TestMinorIsNotIndex(t *testing.T) {
	t.Parallel()
	simulated, library := simulate(t, "t4-4")
	hardware := open(t, library)
	defer closeHardware(t, hardware)
	before, failures := discover(t, hardware)
	wantFound(t, before, failures, []int{0, 1, 2, 3}, nil)
	byMinor := map[int]topology.GPU{}
	for _, gpu := range before.GPUs {
		byMinor[gpu.Minor] = gpu
	}
	if byMinor[0].Index == 0 {
		t.Fatal("the profile must number its device nodes otherwise than NVML numbers its GPUs")
	}

	// A GPU that is gone moves indices, and nothing else.
	inject(t, simulated, sim.Fault{Kind: sim.FaultMissing, Minor: 2})
	after, failures := discover(t, hardware)
	wantFound(t, after, failures, []int{0, 1, 3}, nil)
	for _, gpu := range after.GPUs {
		want := byMinor[gpu.Minor]
		want.Index = gpu.Index
		if !reflect.DeepEqual(gpu, want) {
			t.Errorf("a missing GPU changed another one to\n%+v\nfrom\n%+v", gpu, want)
		}
	}
}

func TestLostGPU(t *testing.T) {
	t.Parallel()
	simulated, library := simulate(t, "dgx-h100")
	lost := sim.Fault{Kind: sim.FaultLost, Minor: 3}
	inject(t, simulated, lost)
	hardware := open(t, library)
	defer closeHardware(t, hardware)
	others := []int{0, 1, 2, 4, 5, 6, 7}

	machine, failures := discover(t, hardware)
	wantFound(t, machine, failures, others, []int{3})
	wantErrorIs(t, failures[0].Err, gonvml.ERROR_GPU_IS_LOST)
	if failures[0].Minor != -1 || failures[0].UUID != "" || failures[0].BusID != "" {
		t.Errorf("the GPU never answered, yet the failure knows more: %+v", failures[0])
	}

	clearFaults(t, simulated)
	machine, failures = discover(t, hardware)
	wantFound(t, machine, failures, []int{0, 1, 2, 3, 4, 5, 6, 7}, nil)

	// A GPU that was seen before is named in full when it is lost.
	inject(t, simulated, lost)
	machine, failures = discover(t, hardware)
	wantFound(t, machine, failures, others, []int{3})
	failures[0].Err = nil
	want := nvml.Failure{Index: 3, Minor: 3, UUID: simulated.UUID(3), BusID: "0000:61:00.0", Call: "DeviceGetHandleByIndex"}
	if failures[0] != want {
		t.Errorf("got the failure %+v, want %+v", failures[0], want)
	}
}

func TestOptionalFacts(t *testing.T) {
	t.Parallel()
	for call, without := range map[string]func(*topology.GPU){
		"GetBrand":                 func(g *topology.GPU) { g.Brand = "" },
		"GetArchitecture":          func(g *topology.GPU) { g.Architecture = "" },
		"GetCudaComputeCapability": func(g *topology.GPU) { g.CUDAComputeCapability = "" },
		"GetEccMode":               func(g *topology.GPU) { g.ECCEnabled = nil },
		"GetVbiosVersion":          func(g *topology.GPU) { g.VBIOS = "" },
	} {
		for _, ret := range []gonvml.Return{gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_UNKNOWN} {
			t.Run(call+"/"+sim.ReturnName(ret), func(t *testing.T) {
				t.Parallel()
				simulated, library := simulate(t, "a30-2")
				hardware := open(t, library)
				defer closeHardware(t, hardware)
				want, _ := discover(t, hardware)
				inject(t, simulated, sim.Fault{Kind: sim.FaultError, Minor: 1, Call: call, Return: ret})
				got, failures := discover(t, hardware)
				wantFound(t, got, failures, []int{0, 1}, nil)
				without(&want.GPUs[1])
				if !reflect.DeepEqual(got, want) {
					t.Errorf("got\n%s\nwant\n%s", describe(got), describe(want))
				}
			})
		}
	}
	t.Run("SystemGetCudaDriverVersion", func(t *testing.T) {
		t.Parallel()
		simulated, library := simulate(t, "a30-2")
		inject(t, simulated, sim.Fault{
			Kind: sim.FaultError, Minor: sim.AnyMinor, Call: "SystemGetCudaDriverVersion", Return: gonvml.ERROR_LIBRARY_NOT_FOUND,
		})
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		got, failures := discover(t, hardware)
		wantFound(t, got, failures, []int{0, 1}, nil)
		if got.CUDADriverVersion != "" {
			t.Errorf("there is no CUDA driver, and its version is %q", got.CUDADriverVersion)
		}
	})
}

func TestMandatoryFacts(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"DeviceGetHandleByIndex", "GetPciInfo", "GetUUID", "GetMinorNumber", "GetName", "GetMemoryInfo"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			simulated, library := simulate(t, "a30-2")
			inject(t, simulated, sim.Fault{Kind: sim.FaultError, Minor: 0, Call: call, Return: gonvml.ERROR_NOT_SUPPORTED, Times: 1})
			hardware := open(t, library)
			defer closeHardware(t, hardware)
			machine, failures := discover(t, hardware)
			wantFound(t, machine, failures, []int{1}, []int{0})
			wantErrorIs(t, failures[0].Err, gonvml.ERROR_NOT_SUPPORTED)
			if failures[0].Call != call || !strings.Contains(failures[0].Err.Error(), "GPU 0") || !strings.Contains(failures[0].Err.Error(), call) {
				t.Errorf("the failure must name the GPU and the call %s: %+v", call, failures[0])
			}
			machine, failures = discover(t, hardware)
			wantFound(t, machine, failures, []int{0, 1}, nil)
		})
	}
}

// TestOddAnswers gives answers that no device can be made of, or only one.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	minor := func(n int) *int { return &n }
	noName := ""
	for name, odd := range map[string]device{
		"minor number of another": {minor: minor(0)},
		"negative minor number":   {minor: minor(-1)},
		"no name":                 {name: &noName},
		"no memory":               {memory: &gonvml.Memory{}},
		"no bus id":               {busID: "\x00"},
		"bus id without function": {busID: "00000000:1B:00"},
		"bus id in words":         {busID: "zzzzzzzz:zz:zz.z"},
		"bus number too large":    {busID: "00000000:1FF:00.0"},
		"device number too large": {busID: "00000000:1B:20.0"},
		"negative domain":         {busID: "-0000001:1B:00.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, library := simulate(t, "dgx-h100")
			library.wrap = func(index int, d gonvml.Device) gonvml.Device {
				if index != 2 {
					return d
				}
				bent := odd
				bent.Device = d
				return bent
			}
			hardware := open(t, library)
			defer closeHardware(t, hardware)
			machine, failures := discover(t, hardware)
			wantFound(t, machine, failures, []int{0, 1, 3, 4, 5, 6, 7}, []int{2})
		})
	}
	t.Run("UUID of another", func(t *testing.T) {
		t.Parallel()
		simulated, library := simulate(t, "a30-2")
		library.wrap = func(_ int, d gonvml.Device) gonvml.Device { return device{Device: d, uuid: simulated.UUID(0)} }
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, []int{0}, []int{1})
		if !strings.Contains(failures[0].Err.Error(), "UUID "+simulated.UUID(0)) {
			t.Errorf("the error must name the UUID: %v", failures[0].Err)
		}
	})
	t.Run("large domain", func(t *testing.T) {
		t.Parallel()
		_, library := simulate(t, "a30-2")
		library.wrap = func(i int, d gonvml.Device) gonvml.Device {
			return device{Device: d, busID: fmt.Sprintf("0001000%d:AF:1F.7", i)}
		}
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, []int{0, 1}, nil)
		if got := machine.GPUs[1].PCI.BusID; got != "10001:af:1f.7" {
			t.Errorf("the bus id is %q, which is not the kernel's form", got)
		}
	})
	t.Run("count", func(t *testing.T) {
		t.Parallel()
		simulated, library := simulate(t, "a30-2")
		inject(t, simulated, sim.Fault{Kind: sim.FaultMissing, Minor: 0}, sim.Fault{Kind: sim.FaultMissing, Minor: 1})
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		machine, failures := discover(t, hardware)
		wantFound(t, machine, failures, nil, nil)
		if machine.DriverVersion == "" {
			t.Error("a machine without GPUs has a driver version all the same")
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	_, library := simulate(t, "a30-2")
	for name, o := range map[string]nvml.Options{
		"no library":       {},
		"negative timeout": {Library: library, CallTimeout: math.MinInt64},
	} {
		if _, err := nvml.Open(t.Context(), o); err == nil {
			t.Errorf("%s: Open must fail", name)
		}
	}
	library.initReturn = func() gonvml.Return { return gonvml.ERROR_LIBRARY_NOT_FOUND }
	_, err := nvml.Open(t.Context(), nvml.Options{Library: library})
	wantErrorIs(t, err, gonvml.ERROR_LIBRARY_NOT_FOUND)
	if !strings.Contains(err.Error(), "install the NVIDIA driver") {
		t.Errorf("the error must say what to do: %v", err)
	}
}

// TestWords checks that every brand and generation has its own word, and that one that is not known has none.
func TestWords(t *testing.T) {
	t.Parallel()
	read := func(bent device) topology.GPU {
		_, library := simulate(t, "a30-2")
		library.wrap = func(_ int, d gonvml.Device) gonvml.Device {
			answers := bent
			answers.Device = d
			return answers
		}
		hardware := open(t, library)
		defer closeHardware(t, hardware)
		machine, _ := discover(t, hardware)
		return machine.GPUs[0]
	}
	words := map[string]string{}
	once := func(what, word string, wanted bool) {
		if (word != "") != wanted {
			t.Errorf("%s is %q", what, word)
		}
		if other, taken := words[word]; taken && word != "" {
			t.Errorf("%s and %s are both %q", what, other, word)
		}
		words[word] = what
	}
	for brand := gonvml.BRAND_UNKNOWN; brand <= gonvml.BRAND_COUNT; brand++ {
		known := brand >= gonvml.BRAND_QUADRO && brand <= gonvml.BRAND_TITAN_RTX
		once(fmt.Sprintf("brand %d", brand), read(device{brand: &brand}).Brand, known)
	}
	for architecture := range gonvml.DeviceArchitecture(gonvml.DEVICE_ARCH_RUBIN + 1) {
		known := architecture >= gonvml.DEVICE_ARCH_KEPLER && architecture != gonvml.DEVICE_ARCH_DLA && architecture != gonvml.DEVICE_ARCH_DLA2
		once(fmt.Sprintf("architecture %d", architecture), read(device{architecture: &architecture}).Architecture, known)
	}
	unknown := gonvml.DeviceArchitecture(gonvml.DEVICE_ARCH_UNKNOWN)
	once("unknown architecture", read(device{architecture: &unknown}).Architecture, false)
}

func TestLibraryIsTheOneGiven(t *testing.T) {
	t.Parallel()
	_, library := simulate(t, "a30-2")
	hardware := open(t, library)
	defer closeHardware(t, hardware)
	if hardware.Library() != gonvml.Interface(library) {
		t.Error("Library gives another library than the one that was opened")
	}
}
