package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/term"
	"k8s.io/component-base/version"

	cliflag "k8s.io/component-base/cli/flag"
)

func newCommand() *cobra.Command {
	var (
		options pluginOptions
		logging = logsapi.NewLoggingConfiguration()
		gates   = featuregate.NewFeatureGate()
	)
	cmd := &cobra.Command{
		Use:   "dra-kubelet-plugin",
		Short: "Publishes this node's NVIDIA GPUs for Dynamic Resource Allocation and prepares them for pods",
		Long: `The Tessera kubelet plugin runs on every GPU node. It reads the GPUs through NVML, publishes them as
ResourceSlices of driver ` + driverName + `, and prepares allocated ResourceClaims through CDI.

Look at what a machine would publish, without a cluster:

  dra-kubelet-plugin inspect
  dra-kubelet-plugin inspect --nvml=sim:dgx-h100 -o yaml`,
		Version:       version.Get().String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, gates); err != nil {
				return err
			}
			if err := options.validate(); err != nil {
				return fmt.Errorf("%w\nSee %s --help", err, cmd.CommandPath())
			}
			return run(cmd.Context(), &options)
		},
	}
	var sections cliflag.NamedFlagSets
	options.addFlags(sections.FlagSet("plugin"))
	logsapi.AddFlags(logging, sections.FlagSet("logging"))
	logs.AddFlags(sections.FlagSet("logging"), logs.SkipLoggingConfigurationFlags())
	if err := logsapi.AddFeatureGates(gates); err == nil {
		gates.AddFlag(sections.FlagSet("feature gates"))
	}
	for _, name := range sections.Order {
		cmd.Flags().AddFlagSet(sections.FlagSets[name])
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, sections, columns)
	cmd.AddCommand(newInspectCommand(), newSimCommand())
	return cmd
}
