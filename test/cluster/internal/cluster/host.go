package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// host is what `up` changes on the machine beside cgroups, processes and the network interface; `down` puts it back.
type host struct {
	Sysctls map[string]string `json:"sysctls"` // path below /proc/sys: value before
	Created []string          `json:"created"` // folders that mounts of the nodes need, parents first
}

// sysctls are the kernel settings that kubelets, containerd and the network plugin change.
func sysctls() []string {
	return []string{
		"kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
		"net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom",
	}
}

func (c *Cluster) hostFile() string { return filepath.Join(c.Layout.Dir, "host.json") }

// prepareHost records what will change, then makes the mount points.
func (c *Cluster) prepareHost() error {
	h := host{Sysctls: map[string]string{}}
	for _, name := range sysctls() {
		if data, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			h.Sysctls[name] = strings.TrimSpace(string(data))
		}
	}
	for _, b := range c.Layout.Node(0).Binds() {
		for dir := b[0]; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(dir); err == nil {
				break
			}
			if !slices.Contains(h.Created, dir) {
				h.Created = append(h.Created, dir)
			}
		}
	}
	slices.Sort(h.Created)
	data, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what the machine was like: %w", err)
	}
	if err := os.WriteFile(c.hostFile(), data, 0o644); err != nil {
		return fmt.Errorf("record what the machine was like: %w", err)
	}
	for _, dir := range h.Created {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the mount point %s: %w", dir, err)
		}
	}
	return nil
}

// restoreHost undoes what prepareHost recorded.
func (c *Cluster) restoreHost() error {
	data, err := os.ReadFile(c.hostFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what the machine was like: %w", err)
	}
	var h host
	if err := json.Unmarshal(data, &h); err != nil {
		// Cut short by a crash before anything was changed.
		return nil //nolint:nilerr // see above
	}
	var failed error
	for _, name := range sysctls() {
		value, ok := h.Sysctls[name]
		file := filepath.Join("/proc/sys", name)
		now, err := os.ReadFile(file)
		if !ok || err != nil || strings.TrimSpace(string(now)) == value {
			continue
		}
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			failed = errors.Join(failed, fmt.Errorf("put back the kernel setting %s=%s: %w", name, value, err))
		}
	}
	for _, dir := range slices.Backward(h.Created) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.say("kept the folder %s: %v", dir, err)
		}
	}
	return failed
}
