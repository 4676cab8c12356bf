package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tessera.dev/tessera/pkg/nvml/sim"
)

func newSimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Change a simulated machine while it runs",
	}
	cmd.AddCommand(newFaultCommand())
	return cmd
}

func newFaultCommand() *cobra.Command {
	dir := filepath.Join("/var/lib/kubelet/plugins", driverName, "sim")
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Inject faults into the simulated machine, list them, or clear them",
		Example: `  dra-kubelet-plugin sim fault lost --minor 3
  dra-kubelet-plugin sim fault error --minor 2 --call GetUUID --return ERROR_UNKNOWN --times 3
  dra-kubelet-plugin sim fault hang --minor 1 --call GetMemoryInfo --delay 30s
  dra-kubelet-plugin sim fault list
  dra-kubelet-plugin sim fault clear`,
	}
	cmd.PersistentFlags().StringVar(&dir, "sim-dir", dir, "The simulated machine's directory.")
	state := func() (*sim.State, error) { return sim.OpenState(filepath.Join(dir, stateFile)) }
	cmd.AddCommand(
		newInjectCommand(state, sim.FaultLost, "A GPU falls off the bus: every call on it fails"),
		newInjectCommand(state, sim.FaultMissing, "A GPU is not enumerated any more"),
		newInjectCommand(state, sim.FaultError, "An NVML call returns an error"),
		newInjectCommand(state, sim.FaultHang, "An NVML call does not answer"),
		&cobra.Command{
			Use: "list", Short: "List the faults that stand", Args: cobra.NoArgs, SilenceUsage: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				opened, err := state()
				if err != nil {
					return err
				}
				faults, err := opened.Faults()
				if err != nil {
					return err
				}
				for _, f := range faults {
					if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s minor=%d call=%q return=%s times=%d delay=%v\n",
						f.Kind, f.Minor, f.Call, sim.ReturnName(f.Return), f.Times, f.Delay); err != nil {
						return err
					}
				}
				return nil
			},
		},
		&cobra.Command{
			Use: "clear", Short: "Clear all faults", Args: cobra.NoArgs, SilenceUsage: true,
			RunE: func(*cobra.Command, []string) error {
				opened, err := state()
				if err != nil {
					return err
				}
				return opened.ClearFaults()
			},
		},
	)
	return cmd
}

func newInjectCommand(state func() (*sim.State, error), kind sim.FaultKind, short string) *cobra.Command {
	var (
		fault      = sim.Fault{Kind: kind}
		returnName string
	)
	cmd := &cobra.Command{
		Use: string(kind), Short: short, Args: cobra.NoArgs, SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			if returnName != "" {
				code, err := sim.ParseReturn(returnName)
				if err != nil {
					return fmt.Errorf("--return: %w", err)
				}
				fault.Return = code
			}
			opened, err := state()
			if err != nil {
				return err
			}
			return opened.Inject(fault)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&fault.Minor, "minor", sim.AnyMinor, "The GPU's minor number; -1 for library functions and every GPU.")
	if kind == sim.FaultError || kind == sim.FaultHang {
		flags.StringVar(&fault.Call, "call", "", "The NVML function, for example GetUUID; empty for all of the GPU's.")
		flags.IntVar(&fault.Times, "times", 0, "How many calls are hit; 0 for all until the fault is cleared.")
	}
	if kind == sim.FaultError {
		flags.StringVar(&returnName, "return", "ERROR_UNKNOWN", "The NVML return code.")
	}
	if kind == sim.FaultHang {
		flags.DurationVar(&fault.Delay, "delay", 0*time.Second, "How long a call hangs; 0 until the fault is cleared.")
	}
	return cmd
}
