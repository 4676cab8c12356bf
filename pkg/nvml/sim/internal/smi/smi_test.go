package smi_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tessera.dev/tessera/pkg/nvml/sim/internal/smi"
)

var table = smi.Table{
	DriverVersion: "550.163.01", CUDAVersion: "12.4",
	GPUs: []smi.GPU{
		{Minor: 4, Index: 0, UUID: "GPU-aaaa", Name: "NVIDIA L40S", BusID: "00000000:19:00.0", MemoryMiB: 46068},
		{Minor: 0, Index: 1, UUID: "GPU-bbbb", Name: "NVIDIA L40S", BusID: "00000000:1A:00.0", MemoryMiB: 46068},
		{Minor: 11, Index: 2, UUID: "GPU-cccc", Name: "NVIDIA L40S", BusID: "00000000:1B:00.0", MemoryMiB: 46068},
	},
}

// container makes a root with the library at a path ("" for none) and the device nodes of some minors.
func container(t *testing.T, library string, minors ...int) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, minor := range minors {
		write(t, filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", minor)), nil)
	}
	if library != "" {
		data, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, library), data)
	}
	return root
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRun(t *testing.T) {
	const library = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01"
	const two = "GPU 0: NVIDIA L40S (UUID: GPU-bbbb)\nGPU 1: NVIDIA L40S (UUID: GPU-cccc)\n"
	tests := map[string]struct {
		library string
		minors  []int
		args    []string
		code    int
		want    string
	}{
		"one GPU, from 0":      {library, []int{4}, []string{"-L"}, 0, "GPU 0: NVIDIA L40S (UUID: GPU-aaaa)\n"},
		"in order of minors":   {library, []int{11, 0}, []string{"-L"}, 0, two},
		"long form":            {library, []int{11, 0}, []string{"--list-gpus"}, 0, two},
		"in /usr/lib64":        {"usr/lib64/libnvidia-ml.so.1", []int{0, 11}, []string{"-L"}, 0, two},
		"in /usr/lib":          {"usr/lib/libnvidia-ml.so.1", []int{0, 11}, []string{"-L"}, 0, two},
		"a node of no GPU":     {library, []int{7}, []string{"-L"}, 6, "No devices were found\n"},
		"no device":            {library, nil, nil, 6, "No devices were found\n"},
		"no library":           {"", []int{0}, []string{"-L"}, 12, "NVIDIA-SMI couldn't find libnvidia-ml.so"},
		"unknown argument":     {library, []int{0}, []string{"--query-gpu=name"}, 2, ""},
		"the table":            {library, []int{0}, nil, 0, "Driver Version: 550.163.01   CUDA Version: 12.4"},
		"the table's bus id":   {library, []int{0}, nil, 0, "| 00000000:1A:00.0 |   46068MiB |"},
		"the table, in number": {library, []int{0, 4}, nil, 0, "|   1 | NVIDIA L40S "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := smi.Run(container(t, test.library, test.minors...), test.args, &stdout, &stderr)
			if code != test.code {
				t.Errorf("exit code %d, want %d; %s", code, test.code, stderr.String())
			}
			exact := len(test.args) > 0 && test.code == 0
			if got := stdout.String(); got != test.want && (exact || !strings.Contains(got, test.want)) {
				t.Errorf("printed\n%s\nwant\n%s", got, test.want)
			}
			if test.code == 2 && !strings.Contains(stderr.String(), "--query-gpu=name") {
				t.Errorf("the error does not name the argument: %s", stderr.String())
			}
		})
	}
}

func TestRealLibraryIsRefused(t *testing.T) {
	root := container(t, "", 0)
	write(t, filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), []byte("\x7fELF"))
	var stdout, stderr bytes.Buffer
	if code := smi.Run(root, []string{"-L"}, &stdout, &stderr); code != 12 || !strings.Contains(stdout.String(), "not a simulated library") {
		t.Errorf("exit code %d, %s", code, stdout.String())
	}
}

func TestDanglingLinkIsPassedOver(t *testing.T) {
	root := container(t, "usr/lib64/libnvidia-ml.so.550.163.01", 0)
	if err := os.Symlink("libnvidia-ml.so.999", filepath.Join(root, "usr/lib64/libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := smi.Run(root, []string{"-L"}, &stdout, &stderr); code != 0 {
		t.Errorf("exit code %d, %s", code, stdout.String())
	}
}
