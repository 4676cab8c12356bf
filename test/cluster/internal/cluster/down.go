package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"tessera.dev/tessera/test/cluster/internal/cgroup"
	"tessera.dev/tessera/test/cluster/internal/network"
	"tessera.dev/tessera/test/cluster/internal/proc"
)

// Down ends the cluster and removes all that it made, but for the cache. It is harmless when nothing runs.
func (c *Cluster) Down(ctx context.Context) error {
	release, err := c.lock()
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	if err := c.clean(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Layout.FailedLogs()); err != nil {
		return fmt.Errorf("remove the logs of a failed start: %w", err)
	}
	c.say("the cluster is down")
	return nil
}

// clean removes everything of a cluster, whatever state it is in: the processes first, in whose end all mounts
// and pod networks of the nodes vanish too.
func (c *Cluster) clean(ctx context.Context) error {
	owner, err := network.Owner()
	if err != nil {
		return err
	}
	if owner != "" && owner != "?" && owner != c.Layout.Dir {
		return fmt.Errorf("the cluster that is up lives in %s: use --dir %s", owner, owner)
	}
	hs, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := c.endSupervisors(); err != nil {
		return err
	}
	if err := cgroup.KillAll(ctx, hs); err != nil {
		return err
	}
	if err := cgroup.Remove(ctx, hs); err != nil {
		return err
	}
	if err := network.Delete(ctx); err != nil {
		return err
	}
	if err := c.restoreHost(); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Layout.Dir); err != nil {
		return fmt.Errorf("remove the cluster's folder: %w", err)
	}
	return nil
}

// endSupervisors ends those that are still the processes of the pid files, before what they would start again.
func (c *Cluster) endSupervisors() error {
	files, err := filepath.Glob(c.Layout.Pid("*"))
	if err != nil {
		return fmt.Errorf("list the supervisors: %w", err)
	}
	for _, file := range files {
		id, err := proc.Read(file)
		if err != nil || !id.Alive() {
			continue
		}
		if err := syscall.Kill(id.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end the supervisor %d: %w", id.PID, err)
		}
	}
	return nil
}

// keepLogs saves the logs of a start that failed beside the cluster's folder, which is about to go.
func (c *Cluster) keepLogs() {
	to := c.Layout.FailedLogs()
	if err := os.RemoveAll(to); err != nil {
		c.say("cannot keep the logs: %v", err)
		return
	}
	err := os.Rename(filepath.Dir(c.Layout.Log("x")), to)
	if err == nil {
		c.say("logs of the failed start are in %s", to)
	} else if !errors.Is(err, fs.ErrNotExist) {
		c.say("cannot keep the logs: %v", err)
	}
}

// withLog adds the last lines of a component's log to an error.
func (c *Cluster) withLog(err error, component string) error {
	const most = 15
	if errors.Is(err, context.Canceled) {
		return err
	}
	data, readErr := os.ReadFile(c.Layout.Log(component))
	if readErr != nil {
		return err
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return fmt.Errorf("%w\nlast lines of %s:\n%s", err, component, bytes.Join(lines, []byte("\n")))
}
