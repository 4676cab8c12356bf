package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"tessera.dev/tessera/pkg/inventory"
	"tessera.dev/tessera/pkg/topology"
)

func newInspectCommand() *cobra.Command {
	var (
		options hardwareOptions
		output  string
	)
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Print the ResourceSlices that this machine would publish; needs no cluster",
		Example: `  dra-kubelet-plugin inspect
  dra-kubelet-plugin inspect --nvml=sim:gb200-nvl72 -o yaml`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "yaml" {
				return fmt.Errorf("-o %s: use table or yaml", output)
			}
			return inspect(cmd.Context(), &options, output, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	options.addFlags(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "table", "Output format: table or yaml.")
	return cmd
}

// inspect discovers and prints. GPUs that cannot be read are named on errOut and make the command fail at the end.
func inspect(ctx context.Context, o *hardwareOptions, output string, out, errOut io.Writer) error {
	if o.nodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name is not set and the host's name is unknown: %w", err)
		}
		o.nodeName = name
	}
	// A simulated machine needs files to look at; they are gone afterwards.
	dir, err := os.MkdirTemp("", "tessera-inspect-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	o.simDir = dir
	access, err := o.access()
	if err != nil {
		return err
	}
	hardware, err := o.open(ctx, access)
	if err != nil {
		return err
	}
	defer func() { _ = hardware.Close(ctx) }()
	machine, failures, err := hardware.Discover(klog.NewContext(ctx, klog.FromContext(ctx)))
	if err != nil {
		return err
	}
	if err := printInventory(out, output, o.nodeName, machine); err != nil {
		return err
	}
	for _, failure := range failures {
		_, _ = fmt.Fprintf(errOut, "left out: GPU index %d %s %s: %v\n", failure.Index, failure.UUID, failure.BusID, failure.Err)
	}
	if len(failures) > 0 {
		return fmt.Errorf("%d GPU(s) could not be read and would not be published", len(failures))
	}
	return nil
}

func printInventory(out io.Writer, output, nodeName string, machine topology.Machine) error {
	slices := inventory.Slices(machine)
	if output == "table" {
		return inventory.Table(out, machine, slices)
	}
	for i, slice := range slices {
		object := resourceapi.ResourceSlice{
			TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", nodeName, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:         driverName,
				NodeName:       &nodeName,
				Pool:           resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: int64(len(slices))},
				Devices:        slice.Devices,
				SharedCounters: slice.SharedCounters,
			},
		}
		document, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("print slice %d: %w", i, err)
		}
		if _, err := fmt.Fprintf(out, "---\n%s", document); err != nil {
			return err
		}
	}
	return nil
}
