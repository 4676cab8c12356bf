package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/topology"
)

// readPlace fills in what PCI sysfs tells of the GPU with pci.BusID. What it does not tell is left out.
func (h *Hardware) readPlace(ctx context.Context, pci *topology.PCI) {
	logger := klog.FromContext(ctx).V(4).WithValues("busID", pci.BusID)
	root := deviceattribute.WithFSFromRoot(h.sysfsRoot)
	pcieRoot, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(pci.BusID, root)
	if err == nil && pcieRoot.Value.StringValue != nil {
		pci.Root = *pcieRoot.Value.StringValue
	} else {
		logger.Info("No PCIe root in sysfs", "err", err)
	}
	if pci.Switch, err = pcieSwitch(h.sysfsRoot, pci.BusID); err != nil {
		logger.Info("No PCIe switch in sysfs", "err", err)
	}
	node, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(pci.BusID, deviceattribute.ScalarAttribute, root)
	if err != nil || node.Value.IntValue == nil {
		logger.Info("No NUMA node in sysfs", "err", err)
		return
	}
	number := int(*node.Value.IntValue)
	pci.NUMANode = &number
	socket, err := cpuSocket(h.sysfsRoot, number)
	if err != nil {
		logger.Info("No CPU socket in sysfs", "numaNode", number, "err", err)
		return
	}
	pci.CPUSocket = &socket
}

// pcieSwitch is the bus id of the upstream port of the PCIe switch nearest to the GPU, or "" when there is no switch.
//
// It goes by the GPU's path in sysfs. A switch is two bridges, its upstream port and below it the downstream port that the GPU hangs on,
// and the root port is above all switches. So for
//
//	pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0
//
// that is root complex, root port, upstream port, downstream port and GPU, the switch is 0000:17:00.0; with fewer than three bridges
// above the GPU there is none.
func pcieSwitch(sysfsRoot, busID string) (string, error) {
	target, err := os.Readlink(filepath.Join(sysfsRoot, "bus/pci/devices", busID))
	if err != nil {
		return "", err
	}
	parts := strings.Split(filepath.Clean(target), string(filepath.Separator))
	var bridges []string
	for _, part := range parts[:len(parts)-1] {
		if id, err := kernelBusID(part); err == nil && id == part {
			bridges = append(bridges, id)
		}
	}
	if len(bridges) < 3 {
		return "", nil
	}
	return bridges[len(bridges)-2], nil
}

// cpuSocket is the physical package of the NUMA node's first CPU; the kernel puts CPUs of one package only on a node.
func cpuSocket(sysfsRoot string, node int) (int, error) {
	cpus, err := os.ReadFile(filepath.Join(sysfsRoot, fmt.Sprintf("devices/system/node/node%d/cpulist", node)))
	if err != nil {
		return 0, err
	}
	first := strings.TrimSpace(string(cpus))
	if end := strings.IndexAny(first, ",-"); end >= 0 {
		first = first[:end]
	}
	if first == "" {
		return 0, errors.New("the node has no CPUs")
	}
	cpu, err := strconv.ParseUint(first, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("the node's cpulist: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(sysfsRoot, fmt.Sprintf("devices/system/cpu/cpu%d/topology/physical_package_id", cpu)))
	if err != nil {
		return 0, err
	}
	socket, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("the package of CPU %d: %w", cpu, err)
	}
	if socket < 0 {
		return 0, fmt.Errorf("the kernel does not know the package of CPU %d", cpu)
	}
	return socket, nil
}
