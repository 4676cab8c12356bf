package sim_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tessera.dev/tessera/pkg/nvml/sim"
	"tessera.dev/tessera/pkg/nvml/sim/internal/smi"
)

// TestNvidiaSMIReadsTheDriverRoot: the tool prints every GPU of every machine, in the order of the minor numbers.
func TestNvidiaSMIReadsTheDriverRoot(t *testing.T) {
	for _, name := range sim.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			p, err := sim.LoadProfile(name)
			if err != nil {
				t.Fatal(err)
			}
			m := machine(t, name)
			var numbers []int
			for _, gpu := range p.GPUs {
				numbers = append(numbers, gpu.Minor)
			}
			slices.Sort(numbers)
			var want strings.Builder
			for i, minor := range numbers {
				fmt.Fprintf(&want, "GPU %d: %s (UUID: %s)\n", i, p.Product.Name, m.UUID(minor))
			}
			var stdout, stderr bytes.Buffer
			if code := smi.Run(writeRoot(t, m), []string{"-L"}, &stdout, &stderr); code != 0 {
				t.Errorf("exit code %d: %s", code, stderr.String())
			}
			if stdout.String() != want.String() {
				t.Errorf("printed\n%s\nwant\n%s", stdout.String(), want.String())
			}
		})
	}
}
