package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"tessera.dev/tessera/test/cluster/internal/cluster"
	"tessera.dev/tessera/test/cluster/internal/layout"
	"tessera.dev/tessera/test/cluster/internal/supervise"
)

// newCommand returns the program's command line.
func newCommand() *cobra.Command {
	var dir, sources string
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A real Kubernetes cluster on this machine, built from source, without Docker",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&dir, "dir", "", "where the cluster's state lives (default $TESSERA_CLUSTER_DIR or "+layout.DefaultDir()+")")
	root.PersistentFlags().StringVar(&sources, "sources", "", "the folder of the source modules (default: test/cluster/source above the working directory)")
	open := func(cmd *cobra.Command) (*cluster.Cluster, error) {
		l, err := layout.New(dir)
		if err != nil {
			return nil, err
		}
		return &cluster.Cluster{Layout: l, Sources: sources, Out: cmd.ErrOrStderr()}, nil
	}
	root.AddCommand(buildCommand(open), upCommand(open), downCommand(open), loadCommand(open), envCommand(open), statusCommand(open), superviseCommand())
	return root
}

type opener func(*cobra.Command) (*cluster.Cluster, error)

func buildCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the cluster's programs into the cache and print their folder",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(cmd)
			if err != nil {
				return err
			}
			bin, err := c.Build(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), bin)
			return err
		},
	}
}

func upCommand(open opener) *cobra.Command {
	nodes := 2
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster; one that already runs is left alone",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(cmd)
			if err != nil {
				return err
			}
			return c.Up(cmd.Context(), cluster.UpOptions{Nodes: nodes, NodesGiven: cmd.Flags().Changed("nodes")})
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", nodes, "number of nodes, 1 to 100")
	return cmd
}

func downCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the cluster and remove everything but the cache; harmless when none runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(cmd)
			if err != nil {
				return err
			}
			return c.Down(cmd.Context())
		},
	}
}

func loadCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "load-image FILE...",
		Short: "Import image archives (OCI or docker tar) into every node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			c, err := open(cmd)
			if err != nil {
				return err
			}
			return c.LoadImages(cmd.Context(), files)
		},
	}
}

func envCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: `Print export lines for the shell: eval "$(go run ./test/cluster env)"`,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(cmd)
			if err != nil {
				return err
			}
			return c.Env(cmd.OutOrStdout())
		},
	}
}

func statusCommand(open opener) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say what runs; exit status 1 when the cluster is not wholly up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open(cmd)
			if err != nil {
				return err
			}
			return c.Status(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

// superviseCommand is what `up` starts in the background: one for the control plane, one per node.
func superviseCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "supervise PLAN",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return supervise.Run(cmd.Context(), args[0])
		},
	}
}
