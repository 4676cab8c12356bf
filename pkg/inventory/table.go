package inventory

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"

	"tessera.dev/tessera/pkg/topology"
)

// Table prints the devices of the slices that Slices made of the machine, one a line, for people. What is unknown is a dash.
func Table(w io.Writer, m topology.Machine, slices []Slice) error {
	byMinor := make(map[int]topology.GPU, len(m.GPUs))
	for _, gpu := range m.GPUs {
		byMinor[gpu.Minor] = gpu
	}
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	rows := []string{"DEVICE\tTYPE\tPRODUCT\tMEMORY\tUUID\tPCI\tROOT\tNUMA"}
	for _, slice := range slices {
		for _, device := range slice.Devices {
			ref, err := ParseDeviceName(device.Name)
			if err != nil {
				return fmt.Errorf("print the devices: %w", err)
			}
			rows = append(rows, row(device, ref, byMinor[ref.Minor]))
		}
	}
	if len(rows) == 1 {
		rows = append(rows, "no GPUs were found: the node would publish an empty slice")
	}
	for _, row := range rows {
		if _, err := fmt.Fprintln(out, row); err != nil {
			return fmt.Errorf("print the devices: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the devices: %w", err)
	}
	return nil
}

func row(device resourceapi.Device, ref Ref, gpu topology.GPU) string {
	memory, numa := "-", "-"
	if capacity, ok := device.Capacity[CapacityMemory]; ok {
		memory = capacity.Value.String()
	}
	if gpu.PCI.NUMANode != nil {
		numa = strconv.Itoa(*gpu.PCI.NUMANode)
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", device.Name, ref.Kind, known(gpu.ProductName), memory,
		known(gpu.UUID), known(gpu.PCI.BusID), known(gpu.PCI.Root), numa)
}

func known(text string) string { return cmp.Or(text, "-") }
