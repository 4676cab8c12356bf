// Command nvidia-smi is what a container on a simulated machine runs in place of NVIDIA's tool. It prints the GPUs whose
// device nodes the container has. Build it with CGO_ENABLED=0: it is mounted into images that have no C library.
package main

import (
	"os"

	"tessera.dev/tessera/pkg/nvml/sim/internal/smi"
)

func main() {
	os.Exit(smi.Run("/", os.Args[1:], os.Stdout, os.Stderr))
}
