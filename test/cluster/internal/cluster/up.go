package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"tessera.dev/tessera/test/cluster/internal/cgroup"
	"tessera.dev/tessera/test/cluster/internal/layout"
	"tessera.dev/tessera/test/cluster/internal/network"
	"tessera.dev/tessera/test/cluster/internal/proc"
)

const (
	startLimit   = 3 * time.Minute // for the whole start, without building
	cleanupLimit = time.Minute
)

// UpOptions say what cluster to start.
type UpOptions struct {
	Nodes      int
	NodesGiven bool // false: a running cluster of another size is fine
}

// Up starts a cluster, or tells that it runs already. After a failure or an interrupt nothing is left behind.
func (c *Cluster) Up(ctx context.Context, o UpOptions) error {
	if o.Nodes < 1 || o.Nodes > layout.MaxNodes {
		return fmt.Errorf("--nodes %d: 1 to %d are possible", o.Nodes, layout.MaxNodes)
	}
	release, err := c.lock()
	if err != nil {
		return err
	}
	defer release()
	if s, ok := c.running(); ok {
		if o.NodesGiven && s.Nodes != o.Nodes {
			return fmt.Errorf("a cluster of %d nodes runs already, %d were asked for: end it first with `go run ./test/cluster down`", s.Nodes, o.Nodes)
		}
		c.say("a cluster of %d nodes runs already in %s: left alone", s.Nodes, c.Layout.Dir)
		return nil
	}
	owner, err := network.Owner()
	if err != nil {
		return err
	}
	if owner != "" && owner != "?" && owner != c.Layout.Dir {
		return fmt.Errorf("another cluster is up in %s, and a machine holds only one: end it first with `go run ./test/cluster down --dir %s`", owner, owner)
	}
	bin, err := c.Build(ctx)
	if err != nil {
		return err
	}
	if err := c.clean(ctx); err != nil {
		return fmt.Errorf("remove what an earlier cluster left: %w", err)
	}
	if err := os.RemoveAll(c.Layout.FailedLogs()); err != nil {
		return fmt.Errorf("remove the logs of an earlier start: %w", err)
	}
	begin := time.Now()
	if err := c.start(ctx, o.Nodes, bin); err != nil {
		if ctx.Err() == nil {
			c.keepLogs()
		}
		c.say("the start failed, cleaning up")
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		return errors.Join(err, c.clean(cleanup))
	}
	c.say("%d nodes are ready after %s", o.Nodes, time.Since(begin).Round(100*time.Millisecond))
	c.say(`use it with: eval "$(go run ./test/cluster env)"`)
	return nil
}

func (c *Cluster) start(ctx context.Context, nodes int, bin string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not done within %s", startLimit))
	defer cancel()
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	s := state{Nodes: nodes, Bin: bin}
	if s.Ports, err = choosePorts(); err != nil {
		return err
	}
	if err := c.prepare(ctx, s, hs); err != nil {
		return err
	}
	c.say("starting the control plane")
	if err := c.supervise(controlPlane, false); err != nil {
		return err
	}
	for i := range nodes {
		if err := c.supervise(c.Layout.Node(i).Name, true); err != nil {
			return err
		}
	}
	a, err := c.newAPI(s)
	if err != nil {
		return err
	}
	if err := until(ctx, "the API server", a.ready); err != nil {
		return c.withLog(err, "kube-apiserver")
	}
	if err := until(ctx, "the cluster's roles", a.allowKubelets); err != nil {
		return c.withLog(err, "kube-apiserver")
	}
	c.say("control plane is ready; loading images into %d nodes", nodes)
	if err := c.loadOwnImages(ctx, s); err != nil {
		return c.withLog(err, c.Layout.Node(0).Name+"-containerd")
	}
	if err := until(ctx, "the nodes to be ready", func(ctx context.Context) error { return a.nodesReady(ctx, nodes) }); err != nil {
		return c.withLog(err, c.Layout.Node(0).Name+"-kubelet")
	}
	if err := until(ctx, "the default service account", a.podsAllowed); err != nil {
		return c.withLog(err, "kube-controller-manager")
	}
	s.Ready = true
	return c.writeState(s)
}

// prepare makes everything that the programs need before they start.
func (c *Cluster) prepare(ctx context.Context, s state, hs []cgroup.Hierarchy) error {
	if err := os.MkdirAll(filepath.Dir(c.Layout.Bin()), 0o755); err != nil {
		return fmt.Errorf("make the cluster's folder: %w", err)
	}
	if err := c.prepareHost(); err != nil {
		return err
	}
	if err := c.writeState(s); err != nil {
		return err
	}
	if err := copyProgram(c.Layout.Program()); err != nil {
		return err
	}
	if err := os.Symlink(s.Bin, c.Layout.Bin()); err != nil {
		return fmt.Errorf("link the programs: %w", err)
	}
	if err := c.writePKI(s); err != nil {
		return err
	}
	if err := c.writeConfig(s, hs); err != nil {
		return err
	}
	if err := c.writeOwnImages(ctx); err != nil {
		return err
	}
	addresses := []string{layout.ServiceIP}
	for i := range s.Nodes {
		n := c.Layout.Node(i)
		addresses = append(addresses, n.IP())
		if err := cgroup.Create(hs, nodeCgroup(n)); err != nil {
			return err
		}
	}
	return network.Create(ctx, c.Layout.Dir, addresses)
}

// copyProgram keeps a copy of the running program, which `go run` would delete.
func copyProgram(to string) error {
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	return nil
}

// supervise starts a supervisor in the background; a node's gets a mount namespace of its own.
func (c *Cluster) supervise(name string, node bool) error {
	out, err := os.OpenFile(c.Layout.Log(name+"-supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open a supervisor's log: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(c.Layout.Program(), "supervise", c.Layout.Config(name+".plan"))
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if node {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the supervisor of %s: %w", name, err)
	}
	id, err := proc.Of(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("the supervisor of %s ended at once (see %s): %w", name, out.Name(), err)
	}
	if err := id.Write(c.Layout.Pid(name)); err != nil {
		return err
	}
	return cmd.Process.Release()
}
