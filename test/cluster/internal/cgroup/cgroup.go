// Package cgroup makes the cluster's cgroups. Every process of the cluster lives below one cgroup of a fixed name, so that
// what belongs to the cluster is certain even after a crash.
package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is the cgroup, in every hierarchy, that holds all of the cluster.
const Root = "/tessera-cluster"

// Hierarchy is one mounted cgroup hierarchy.
type Hierarchy struct {
	Path    string // where it is mounted
	V2      bool
	Options []string // of the mount: for v1, its controllers
}

// Hierarchies returns what is mounted, in the order of mounting.
func Hierarchies() ([]Hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	found := parseMountinfo(string(data))
	if len(found) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: mount /sys/fs/cgroup first")
	}
	return found, nil
}

func parseMountinfo(text string) []Hierarchy {
	var found []Hierarchy
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 || !strings.HasPrefix(f[4], "/sys/fs/cgroup") {
			continue
		}
		switch g[0] {
		case "cgroup":
			found = append(found, Hierarchy{Path: f[4], Options: strings.Split(g[2], ",")})
		case "cgroup2":
			found = append(found, Hierarchy{Path: f[4], V2: true})
		}
	}
	return found
}

// V1 says whether controllers are used through cgroup v1.
func V1(hs []Hierarchy) bool {
	return slices.ContainsFunc(hs, func(h Hierarchy) bool { return !h.V2 && slices.Contains(h.Options, "memory") })
}

// owner is the hierarchy by which processes are known to be the cluster's.
func owner(hs []Hierarchy) Hierarchy {
	for _, controller := range []string{"pids", "freezer", "devices"} {
		for _, h := range hs {
			if !h.V2 && slices.Contains(h.Options, controller) {
				return h
			}
		}
	}
	return hs[0]
}

// OwnerDir is the folder of a cgroup, such as Root+"/control-plane", in the hierarchy that processes join.
func OwnerDir(hs []Hierarchy, name string) string { return filepath.Join(owner(hs).Path, name) }

// Create makes a cgroup in every hierarchy, able to hold kubelet's pods.
func Create(hs []Hierarchy, name string) error {
	v1 := V1(hs)
	for _, h := range hs {
		dir := h.Path
		for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make the cgroup %s: %w", dir, err)
			}
			var err error
			switch {
			case slices.Contains(h.Options, "cpuset"):
				err = fillCpuset(parent, dir)
			case h.V2 && !v1:
				err = delegate(parent)
			}
			if err != nil {
				return err
			}
		}
		if h.V2 && !v1 {
			if err := delegate(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillCpuset gives a cpuset its parent's processors and memory nodes: an empty one takes no process.
func fillCpuset(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		data, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return fmt.Errorf("read the parent's cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return fmt.Errorf("fill the cpuset %s: %w", dir, err)
		}
	}
	return nil
}

// delegate turns on, for a cgroup's children, every v2 controller that the cgroup has.
func delegate(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read the controllers of %s: %w", dir, err)
	}
	for c := range strings.FieldsSeq(string(data)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("turn on the controller %s below %s: %w", c, dir, err)
		}
	}
	return nil
}

// Join moves the calling process into the cgroup whose folder is given.
func Join(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cgroup %s: %w", dir, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return fmt.Errorf("join the cgroup %s: %w", dir, err)
	}
	return nil
}

// Processes returns the processes below Root, sorted.
func Processes(hs []Hierarchy) []int {
	var pids []int
	for _, h := range hs {
		// What vanishes while walking has ended: nothing to report.
		_ = filepath.WalkDir(filepath.Join(h.Path, Root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // see above
			}
			data, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			for f := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// KillAll ends every process below Root and returns when none is left.
func KillAll(ctx context.Context, hs []Hierarchy) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		pids := Processes(hs)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := kill(pid); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of the cluster do not end: %w", pids, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// kill ends a process if it is (still) below Root; the handle makes sure that it is the one looked at.
func kill(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !belongs(string(groups)) {
		return nil //nolint:nilerr // ended meanwhile, or another's
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	return nil
}

// belongs says whether the text of /proc/PID/cgroup names a cgroup at or below Root.
func belongs(groups string) bool {
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (f[2] == Root || strings.HasPrefix(f[2], Root+"/")) {
			return true
		}
	}
	return false
}

// Remove deletes the cgroups at and below Root, which must hold no process any more.
func Remove(ctx context.Context, hs []Hierarchy) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var left error
		for _, h := range hs {
			left = errors.Join(left, removeTree(filepath.Join(h.Path, Root)))
		}
		if left == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove the cluster's cgroups: %w", left)
		case <-tick.C:
		}
	}
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var failed error
	for _, e := range entries {
		if e.IsDir() {
			failed = errors.Join(failed, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		failed = errors.Join(failed, err)
	}
	return failed
}
