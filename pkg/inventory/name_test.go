package inventory_test

import (
	"math"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"tessera.dev/tessera/pkg/inventory"
)

func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]inventory.Ref{
		"gpu-0":                  {Kind: inventory.KindGPU, Minor: 0},
		"gpu-15":                 {Kind: inventory.KindGPU, Minor: 15},
		"gpu-2147483647":         {Kind: inventory.KindGPU, Minor: math.MaxInt32},
		"gpu-0-monitor":          {Kind: inventory.KindMonitor, Minor: 0},
		"gpu-2147483647-monitor": {Kind: inventory.KindMonitor, Minor: math.MaxInt32},
	} {
		got, err := inventory.ParseDeviceName(name)
		if err != nil || got != want {
			t.Errorf("ParseDeviceName(%q) = %v, %v; want %v", name, got, err, want)
		}
		if got := inventory.DeviceName(want.Kind, want.Minor); got != name {
			t.Errorf("DeviceName(%v) = %q, want %q", want, got, name)
		}
	}
	for _, name := range []string{
		"", "gpu", "gpu-", "gpu--1", "gpu-+1", "gpu-01", "gpu-0x1", "gpu-1_0", "gpu- 1", "gpu-1 ", "GPU-1", "1", "gpu-2147483648",
		"gpu-monitor", "gpu--monitor", "gpu-1-monitor-monitor", "gpu-1-Monitor", "gpu-1-shared", "gpu-1-mig-1g-10gb-0", "gpu-gpu-1", "mon-1",
	} {
		if ref, err := inventory.ParseDeviceName(name); err == nil || !strings.Contains(err.Error(), "gpu-<minor>") {
			t.Errorf("ParseDeviceName(%q) = %v, %v; want an error that says what names are like", name, ref, err)
		}
	}
}

func FuzzNames(f *testing.F) {
	for _, name := range []string{"gpu-0", "gpu-12-monitor", "gpu-007", "gpu-99999999999999999999", "-monitor", "gpu-\x00"} {
		f.Add(name, 3)
	}
	f.Fuzz(func(t *testing.T, name string, minor int) {
		if ref, err := inventory.ParseDeviceName(name); err == nil {
			if again := inventory.DeviceName(ref.Kind, ref.Minor); again != name {
				t.Errorf("%q is read as %v, whose name is %q", name, ref, again)
			}
		}
		if minor < 0 || minor > math.MaxInt32 {
			return
		}
		for _, kind := range []inventory.Kind{inventory.KindGPU, inventory.KindMonitor} {
			name := inventory.DeviceName(kind, minor)
			if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
				t.Errorf("%q is not a DNS label: %v", name, problems)
			}
			if ref, err := inventory.ParseDeviceName(name); err != nil || ref != (inventory.Ref{Kind: kind, Minor: minor}) {
				t.Errorf("%q is read back as %v, %v", name, ref, err)
			}
		}
	})
}
