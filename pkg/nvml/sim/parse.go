package sim

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"
)

// The limits keep a wrong profile from asking for an absurd machine.
const (
	maxGPUs      = 64
	maxNUMANodes = 64
	maxBridges   = 9 // a root port and four switches
	maxMinor     = 191
	maxCPU       = 8191
	maxMemoryMiB = 16 << 20
)

var (
	namePattern    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	versionPattern = regexp.MustCompile(`^[0-9]+(\.[0-9]+){1,4}$`)
	pairPattern    = regexp.MustCompile(`^[0-9]{1,2}\.[0-9]{1,2}$`)
	vbiosPattern   = regexp.MustCompile(`^[0-9A-F]{2}(\.[0-9A-F]{2}){4}$`)
	busIDPattern   = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	rootPattern    = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}$`)
)

// parser is a decoder and what it has read so far.
type parser struct {
	decoder
	profile Profile
	// numaUses are checked at the end: numaNodes may come after gpus.
	numaUses []numaUse
	minors   map[int]string    // minor → path of the GPU
	buses    map[string]string // GPU bus id → path of the GPU
	bridges  map[string]string // bridge → what is above it
}

type numaUse struct {
	node  *yaml.Node
	path  string
	value int
}

// ParseProfile reads a profile from YAML. source names it in errors, which have the form
// "source:line: field: what is wrong" and are joined when there are several.
func ParseProfile(data []byte, source string) (*Profile, error) {
	p := &parser{
		decoder: decoder{source: source},
		minors:  map[int]string{}, buses: map[string]string{}, bridges: map[string]string{},
	}
	root := p.document(data)
	if root == nil {
		return nil, p.err()
	}
	p.object(root, "", map[string]field{
		"name":              {true, p.into(&p.profile.Name, namePattern, "small letters, digits and dashes")},
		"driverVersion":     {true, p.into(&p.profile.DriverVersion, versionPattern, "numbers with dots, as 550.163.01")},
		"nvmlVersion":       {true, p.into(&p.profile.NVMLVersion, versionPattern, "numbers with dots, as 12.550.163.01")},
		"cudaDriverVersion": {true, p.into(&p.profile.CUDADriverVersion, pairPattern, "MAJOR.MINOR in quotes, as \"12.4\"")},
		"product":           {true, p.product},
		"fabric":            {false, p.fabric},
		"numaNodes":         {true, p.numaNodes},
		"gpus":              {true, p.gpus},
	})
	for _, use := range p.numaUses {
		if use.value >= len(p.profile.NUMANodes) {
			p.fail(use.node, use.path, "there is no NUMA node %d: numaNodes has %d", use.value, len(p.profile.NUMANodes))
		}
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return &p.profile, nil
}

// into reads a text that matches a pattern; form says in words what that is.
func (p *parser) into(target *string, pattern *regexp.Regexp, form string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		value, ok := p.text(n, path)
		if !ok {
			return
		}
		if !pattern.MatchString(value) || len(value) > 63 {
			p.fail(n, path, "%q: want %s", value, form)
			return
		}
		*target = value
	}
}

func (p *parser) product(n *yaml.Node, path string) {
	product := &p.profile.Product
	p.object(n, path, map[string]field{
		"name": {true, func(n *yaml.Node, path string) {
			value, ok := p.text(n, path)
			if ok && len(value) > 63 {
				p.fail(n, path, "%d characters, NVML's names have at most 63", len(value))
			}
			product.Name = value
		}},
		"brand":        {true, func(n *yaml.Node, path string) { choose(p, n, path, brands, &product.Brand) }},
		"architecture": {true, func(n *yaml.Node, path string) { choose(p, n, path, architectures, &product.Architecture) }},
		"computeCapability": {true, func(n *yaml.Node, path string) {
			var pair string
			p.into(&pair, pairPattern, "MAJOR.MINOR in quotes, as \"9.0\"")(n, path)
			major, minor, _ := strings.Cut(pair, ".")
			product.ComputeMajor, _ = strconv.Atoi(major) // the pattern allows digits only
			product.ComputeMinor, _ = strconv.Atoi(minor)
		}},
		"memoryMiB": {true, func(n *yaml.Node, path string) {
			value, _ := p.whole(n, path, 1, maxMemoryMiB)
			product.MemoryMiB = uint64(value)
		}},
		"pciDeviceID": {true, func(n *yaml.Node, path string) {
			value, ok := p.whole(n, path, 1, 0xffffffff)
			if ok && value&0xffff != nvidiaVendorID {
				p.fail(n, path, "the lower 16 bits are the vendor, and NVIDIA's is 0x10de")
			}
			product.PCIDeviceID = uint32(value)
		}},
		"pciSubsystemID": {false, func(n *yaml.Node, path string) {
			value, _ := p.whole(n, path, 1, 0xffffffff)
			product.PCISubsystemID = uint32(value)
		}},
		"vbios": {true, p.into(&product.VBIOS, vbiosPattern, "five bytes, as 96.00.74.00.01")},
		"ecc": {false, func(n *yaml.Node, path string) {
			if value, ok := p.truth(n, path); ok {
				product.ECC = &value
			}
		}},
		"maxMIGDevices": {false, func(n *yaml.Node, path string) {
			value, _ := p.whole(n, path, 1, 8)
			product.MaxMIGDevices = int(value)
		}},
	})
}

func choose[T any](p *parser, n *yaml.Node, path string, known map[string]T, target *T) {
	value, ok := p.text(n, path)
	if !ok {
		return
	}
	chosen, ok := known[value]
	if !ok {
		p.fail(n, path, "%q: want one of %s", value, strings.Join(sortedKeys(known), ", "))
		return
	}
	*target = chosen
}

func (p *parser) fabric(n *yaml.Node, path string) {
	fabric := &Fabric{}
	p.object(n, path, map[string]field{
		"clusterUUID": {true, func(n *yaml.Node, path string) {
			value, ok := p.text(n, path)
			if !ok {
				return
			}
			id, err := uuid.Parse(value)
			if err != nil || id == uuid.Nil {
				p.fail(n, path, "%q is not a UUID other than zero", value)
				return
			}
			fabric.ClusterUUID = id
		}},
		"cliqueID": {true, func(n *yaml.Node, path string) {
			value, _ := p.whole(n, path, 0, 0xffffffff)
			fabric.CliqueID = uint32(value)
		}},
	})
	p.profile.Fabric = fabric
}

func (p *parser) numaNodes(n *yaml.Node, path string) {
	taken := map[int]string{}
	p.list(n, path, maxNUMANodes, func(n *yaml.Node, path string) {
		var node NUMANode
		p.object(n, path, map[string]field{
			"socket": {true, func(n *yaml.Node, path string) {
				value, _ := p.whole(n, path, 0, maxNUMANodes-1)
				node.Socket = int(value)
			}},
			"cpus": {false, func(n *yaml.Node, path string) {
				value, ok := p.text(n, path)
				if !ok {
					return
				}
				cpus, err := parseCPUs(value)
				if err != nil {
					p.fail(n, path, "%q: %v", value, err)
					return
				}
				for _, cpu := range cpus {
					if other, ok := taken[cpu]; ok {
						p.fail(n, path, "CPU %d is already in %s", cpu, other)
						return
					}
					taken[cpu] = path
				}
				node.CPUs = value
			}},
		})
		p.profile.NUMANodes = append(p.profile.NUMANodes, node)
	})
}

func (p *parser) gpus(n *yaml.Node, path string) {
	p.list(n, path, maxGPUs, p.gpu)
	if list := resolve(n); list.Kind == yaml.SequenceNode && len(list.Content) == 0 {
		p.fail(n, path, "the machine has no GPU")
	}
}

func (p *parser) gpu(n *yaml.Node, path string) {
	gpu := GPU{Minor: -1}
	p.object(n, path, map[string]field{
		"minor": {true, func(n *yaml.Node, at string) {
			value, ok := p.whole(n, at, 0, maxMinor)
			if !ok {
				return
			}
			gpu.Minor = int(value)
			if other, taken := p.minors[gpu.Minor]; taken {
				p.fail(n, at, "minor %d is already that of %s", gpu.Minor, other)
			}
			p.minors[gpu.Minor] = path
		}},
		"pci": {true, func(n *yaml.Node, at string) { p.pci(n, at, path, &gpu) }},
	})
	p.profile.GPUs = append(p.profile.GPUs, gpu)
}

func (p *parser) pci(n *yaml.Node, path, owner string, gpu *GPU) {
	const busForm = "a bus id in the kernel's form, as 0000:1b:00.0"
	var bridgeNodes []*yaml.Node
	p.object(n, path, map[string]field{
		"root": {true, p.into(&gpu.Root, rootPattern, "a root complex, as pci0000:15")},
		"bridges": {true, func(n *yaml.Node, at string) {
			p.list(n, at, maxBridges, func(n *yaml.Node, at string) {
				var bridge string
				p.into(&bridge, busIDPattern, busForm)(n, at)
				gpu.Bridges, bridgeNodes = append(gpu.Bridges, bridge), append(bridgeNodes, n)
			})
			if list := resolve(n); list.Kind == yaml.SequenceNode && len(list.Content)%2 == 0 && len(list.Content) <= maxBridges {
				p.fail(n, at, "%d bridges: want the root port, then an upstream and a downstream port for each switch", len(list.Content))
			}
		}},
		"busID": {true, func(n *yaml.Node, at string) {
			p.into(&gpu.BusID, busIDPattern, busForm)(n, at)
			if gpu.BusID == "" {
				return
			}
			if other, taken := p.buses[gpu.BusID]; taken {
				p.fail(n, at, "%s is already the bus id of %s", gpu.BusID, other)
			}
			p.buses[gpu.BusID] = owner
		}},
		"numaNode": {false, func(n *yaml.Node, at string) {
			if value, ok := p.whole(n, at, 0, maxNUMANodes-1); ok {
				node := int(value)
				gpu.NUMANode = &node
				p.numaUses = append(p.numaUses, numaUse{n, at, node})
			}
		}},
	})
	p.chain(path, gpu, bridgeNodes)
	if gpu.BusID != "" && slices.Contains(gpu.Bridges, gpu.BusID) {
		p.fail(n, path+".bridges", "%s is the GPU itself", gpu.BusID)
	}
}

// chain checks that every bridge has one place in the machine's tree.
func (p *parser) chain(path string, gpu *GPU, nodes []*yaml.Node) {
	above := gpu.Root
	for i, bridge := range gpu.Bridges {
		if bridge == "" {
			return // already an error
		}
		if i == 0 && gpu.Root != "" && "pci"+bridge[:7] != gpu.Root {
			p.fail(nodes[i], path+".bridges[0]", "the root port %s is not on the root complex %s", bridge, gpu.Root)
		}
		if other, ok := p.bridges[bridge]; ok && other != above {
			p.fail(nodes[i], path+".bridges", "%s is below %s here and below %s before", bridge, above, other)
		}
		p.bridges[bridge] = above
		above = bridge
	}
}
