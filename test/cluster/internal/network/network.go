// Package network gives the cluster its addresses: one interface that holds the address of the Service `kubernetes`
// and those of the nodes.
package network

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
)

// Interface is the cluster's interface; it is a pair, whose other end has no address, because pods need that kind of
// interface anyway while not every kernel has the dummy kind.
const Interface = "tessera0"

const aliasPrefix = "tessera-cluster "

// Create makes the interface with addresses (without prefix length), marked as the cluster's whose folder is dir.
func Create(ctx context.Context, dir string, addresses []string) error {
	commands := [][]string{
		{"link", "add", Interface, "type", "veth", "peer", "name", Interface + "p"},
		{"link", "set", Interface, "alias", aliasPrefix + dir},
		{"link", "set", Interface, "up"},
		{"link", "set", Interface + "p", "up"},
	}
	for _, a := range addresses {
		commands = append(commands, []string{"addr", "add", a + "/32", "dev", Interface})
	}
	for _, args := range commands {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// Owner returns the folder of the cluster that the interface belongs to: empty if there is no such interface.
func Owner() (string, error) {
	if _, err := net.InterfaceByName(Interface); err != nil {
		return "", nil //nolint:nilerr // there is none
	}
	data, err := os.ReadFile("/sys/class/net/" + Interface + "/ifalias")
	if err != nil {
		return "", fmt.Errorf("ask whose the interface %s is: %w", Interface, err)
	}
	dir, ok := strings.CutPrefix(strings.TrimSpace(string(data)), aliasPrefix)
	if !ok {
		// Made and not yet marked: only this program makes interfaces of this name.
		return "?", nil
	}
	return dir, nil
}

// Delete removes the interface, if there is one.
func Delete(ctx context.Context) error {
	if _, err := net.InterfaceByName(Interface); err != nil {
		return nil //nolint:nilerr // there is none
	}
	return ip(ctx, "link", "del", Interface)
}

func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// FreePort returns want if nothing listens there on 127.0.0.1, else any free port. taken holds ports already given away.
func FreePort(want int, taken map[int]bool) (int, error) {
	for _, p := range []int{want, 0, 0, 0} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			continue
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		if !taken[port] {
			taken[port] = true
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free TCP port on 127.0.0.1 instead of %d", want)
}
