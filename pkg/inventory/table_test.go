package inventory_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"tessera.dev/tessera/pkg/inventory"
	"tessera.dev/tessera/pkg/topology"
)

func TestTable(t *testing.T) {
	t.Parallel()
	m := machineOf(2)
	m.GPUs[1] = topology.GPU{Minor: 1}
	for name, test := range map[string]struct {
		machine topology.Machine
		want    string
	}{
		"facts known and unknown": {m, `
DEVICE          TYPE      PRODUCT                 MEMORY    UUID                                       PCI            ROOT          NUMA
gpu-0           gpu       NVIDIA H100 80GB HBM3   81559Mi   GPU-00000000-0000-4000-8000-000000000000   0000:10:00.0   pci0000:00   0
gpu-1           gpu       -                       -         -                                          -              -            -
gpu-0-monitor   monitor   NVIDIA H100 80GB HBM3   -         GPU-00000000-0000-4000-8000-000000000000   0000:10:00.0   pci0000:00   0
gpu-1-monitor   monitor   -                       -         -                                          -              -            -
`},
		"no GPUs": {topology.Machine{}, `
DEVICE   TYPE   PRODUCT   MEMORY   UUID   PCI   ROOT   NUMA
no GPUs were found: the node would publish an empty slice
`},
	} {
		var out strings.Builder
		if err := inventory.Table(&out, test.machine, inventory.Slices(test.machine)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := strings.Fields(out.String()), strings.Fields(test.want); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: got\n%s\nwant%s", name, out.String(), test.want)
		}
	}
}

func TestTableErrors(t *testing.T) {
	t.Parallel()
	foreign := []inventory.Slice{{Devices: []resourceapi.Device{{Name: "nic-0"}}}}
	if err := inventory.Table(io.Discard, topology.Machine{}, foreign); err == nil || !strings.Contains(err.Error(), "nic-0") {
		t.Errorf("a device of another driver: %v", err)
	}
	reader, writer := io.Pipe()
	broken := errors.New("broken pipe")
	reader.CloseWithError(broken)
	if err := inventory.Table(writer, topology.Machine{}, inventory.Slices(machineOf(1))); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
}
