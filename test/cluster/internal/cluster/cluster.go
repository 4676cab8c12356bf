// Package cluster starts, describes and ends the cluster.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tessera.dev/tessera/test/cluster/internal/config"
	"tessera.dev/tessera/test/cluster/internal/layout"
	"tessera.dev/tessera/test/cluster/internal/proc"
	"tessera.dev/tessera/test/cluster/internal/source"
)

// Cluster is one cluster of this machine, running or not.
type Cluster struct {
	Layout  layout.Layout
	Sources string    // folder of the source modules, empty: look for it
	Out     io.Writer // progress
}

// state describes a cluster that is up (or was, before a crash).
type state struct {
	Nodes int          `json:"nodes"`
	Ports config.Ports `json:"ports"`
	Bin   string       `json:"bin"`
	Ready bool         `json:"ready"` // false: the start did not come to its end
}

const controlPlane = "control-plane"

func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintf(c.Out, format+"\n", args...)
}

// Build makes the programs that the cache lacks and returns their folder.
func (c *Cluster) Build(ctx context.Context) (string, error) {
	if err := source.EnsurePackages(ctx, c.Out); err != nil {
		return "", err
	}
	dir, err := source.Find(c.Sources)
	if err != nil {
		return "", err
	}
	cache, err := source.CacheDir()
	if err != nil {
		return "", err
	}
	return source.Builder{Dir: dir, Cache: cache, Out: c.Out}.Build(ctx)
}

func (c *Cluster) readState() (state, error) {
	data, err := os.ReadFile(c.Layout.StateFile())
	if err != nil {
		return state{}, fmt.Errorf("read the cluster's state: %w", err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return state{}, fmt.Errorf("read the cluster's state %s: %w", c.Layout.StateFile(), err)
	}
	return s, nil
}

func (c *Cluster) writeState(s state) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's state: %w", err)
	}
	if err := os.WriteFile(c.Layout.StateFile(), data, 0o644); err != nil {
		return fmt.Errorf("write the cluster's state: %w", err)
	}
	return nil
}

// supervisors names the supervisors of a cluster of n nodes.
func (c *Cluster) supervisors(n int) []string {
	names := []string{controlPlane}
	for i := range n {
		names = append(names, c.Layout.Node(i).Name)
	}
	return names
}

// running says whether a cluster is up: its start came to an end and all its supervisors are alive.
func (c *Cluster) running() (state, bool) {
	s, err := c.readState()
	if err != nil {
		return state{}, false
	}
	if !s.Ready {
		return s, false
	}
	for _, name := range c.supervisors(s.Nodes) {
		id, err := proc.Read(c.Layout.Pid(name))
		if err != nil || !id.Alive() {
			return s, false
		}
	}
	return s, true
}

func (c *Cluster) mustRun() (state, error) {
	s, ok := c.running()
	if !ok {
		return state{}, fmt.Errorf("no cluster runs in %s: start one with `go run ./test/cluster up`", c.Layout.Dir)
	}
	return s, nil
}

// lock keeps other commands from changing the cluster at the same time.
func (c *Cluster) lock() (release func(), err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("this needs root (mounts, cgroups, network): run it as root")
	}
	name := c.Layout.LockFile()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of the lock: %w", err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && !same(f, name) {
		// Another command removed the file between our opening and locking it.
		err = unix.EWOULDBLOCK
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another command changes the cluster in %s just now: wait for it to end", c.Layout.Dir)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() {
		if _, err := os.Stat(c.Layout.Dir); err != nil {
			os.Remove(name) // nothing is left to guard; still locked, see same
		}
		f.Close()
	}, nil
}

// same says whether an open file is still the one of that name.
func same(f *os.File, name string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(name)
	return err == nil && os.SameFile(a, b)
}

// until calls check every so often until it succeeds or ctx ends; then the last reason is told.
func until(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w (last: %w)", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// Env prints what a shell needs for the cluster.
func (c *Cluster) Env(w io.Writer) error {
	if _, err := c.mustRun(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "export KUBECONFIG=%s\nexport PATH=%s:\"$PATH\"\n", quote(c.Layout.Kubeconfig()), quote(c.Layout.Bin()))
	if err != nil {
		return fmt.Errorf("print the environment: %w", err)
	}
	return nil
}

// quote makes a shell word of a path.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
