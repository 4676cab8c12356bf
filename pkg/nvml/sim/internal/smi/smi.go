// Package smi is the simulated nvidia-smi: it prints the GPUs whose device nodes exist under a root directory.
// It also owns the machine table that the driver root carries in place of a real libnvidia-ml.
package smi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Exit codes are nvidia-smi's own: 2 for a bad argument, 6 for nothing found, 12 for a library that is not there.
const (
	exitOK         = 0
	exitBadArg     = 2
	exitNoDevices  = 6
	exitNoLibrary  = 12
	libraryPattern = "libnvidia-ml.so.*"
)

// Table is the machine as the placeholder libnvidia-ml.so.<version> holds it, in JSON.
type Table struct {
	DriverVersion string `json:"driverVersion"`
	CUDAVersion   string `json:"cudaVersion"`
	GPUs          []GPU  `json:"gpus"`
}

// GPU is one row of a Table.
type GPU struct {
	// Minor is the N of /dev/nvidiaN.
	Minor int `json:"minor"`
	// Index is the GPU's place in NVML's enumeration of the whole machine.
	Index int `json:"index"`
	// UUID has NVML's form, for example "GPU-0c9bd0b8-…".
	UUID string `json:"uuid"`
	// Name is the product name.
	Name string `json:"name"`
	// BusID has NVML's form, for example "00000000:1B:00.0".
	BusID string `json:"busID"`
	// MemoryMiB is the size of the framebuffer.
	MemoryMiB uint64 `json:"memoryMiB"`
}

// Encode gives the bytes that WriteDriverRoot puts into the placeholder library.
func (t Table) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the machine table: %w", err)
	}
	return append(data, '\n'), nil
}

// Run is nvidia-smi with the given arguments over the file system at root ("/" in a container). It returns the exit code.
func Run(root string, args []string, stdout, stderr io.Writer) int {
	list := false
	for _, arg := range args {
		switch arg {
		case "-L", "--list-gpus":
			list = true
		default:
			fmt.Fprintf(stderr, "Invalid argument %q: the simulated nvidia-smi knows only -L (list the GPUs).\n", arg)
			return exitBadArg
		}
	}
	table, err := load(root)
	if err != nil {
		fmt.Fprintf(stdout, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system: %v\n", err)
		return exitNoLibrary
	}
	gpus := visible(root, table)
	if len(gpus) == 0 {
		fmt.Fprintln(stdout, "No devices were found")
		return exitNoDevices
	}
	if list {
		for i, gpu := range gpus {
			fmt.Fprintf(stdout, "GPU %d: %s (UUID: %s)\n", i, gpu.Name, gpu.UUID)
		}
		return exitOK
	}
	printTable(stdout, table, gpus)
	return exitOK
}

// load finds and decodes the machine table in the places where a container runtime mounts libraries.
func load(root string) (Table, error) {
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"} {
		names, err := filepath.Glob(filepath.Join(root, dir, libraryPattern))
		if err != nil {
			return Table{}, fmt.Errorf("search %s: %w", dir, err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // a dangling link
			}
			if err != nil {
				return Table{}, fmt.Errorf("read the machine table: %w", err)
			}
			var table Table
			if err := json.Unmarshal(data, &table); err != nil {
				return Table{}, fmt.Errorf("%s is not a simulated library: %w", name, err)
			}
			return table, nil
		}
	}
	return Table{}, errors.New("no library in /usr/lib/x86_64-linux-gnu, /usr/lib64 or /usr/lib; does the container have a GPU?")
}

// visible keeps the GPUs whose device node exists, in the order of their minor numbers.
func visible(root string, table Table) []GPU {
	var gpus []GPU
	for _, gpu := range table.GPUs {
		if _, err := os.Stat(filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", gpu.Minor))); err == nil {
			gpus = append(gpus, gpu)
		}
	}
	slices.SortFunc(gpus, func(a, b GPU) int { return cmp.Compare(a.Minor, b.Minor) })
	return gpus
}

func printTable(w io.Writer, table Table, gpus []GPU) {
	const rule = "+-----+------------------------------------------+------------------+------------+\n"
	fmt.Fprint(w, rule)
	title := fmt.Sprintf("NVIDIA-SMI (simulated)   Driver Version: %s   CUDA Version: %s", table.DriverVersion, table.CUDAVersion)
	fmt.Fprintf(w, "| %-78s |\n", title)
	fmt.Fprint(w, rule)
	fmt.Fprintf(w, "| %3s | %-40s | %-16s | %10s |\n", "GPU", "Name", "Bus-Id", "Memory")
	fmt.Fprint(w, rule)
	for i, gpu := range gpus {
		fmt.Fprintf(w, "| %3d | %-40.40s | %-16s | %7dMiB |\n", i, gpu.Name, gpu.BusID, gpu.MemoryMiB)
	}
	fmt.Fprint(w, rule)
}
