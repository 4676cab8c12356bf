// Command dra-kubelet-plugin publishes a node's NVIDIA GPUs as ResourceSlices and prepares them for pods.
package main

import (
	"os"

	"k8s.io/component-base/cli"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}
