package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// aptPackages maps Debian packages that the cluster needs to a check for what each brings.
func aptPackages() []struct {
	name string
	has  func() bool
} {
	program := func(name string) func() bool {
		return func() bool { _, err := exec.LookPath(name); return err == nil }
	}
	return []struct {
		name string
		has  func() bool
	}{
		{"busybox-static", program("busybox")},
		{"iproute2", program("ip")},
		{"iptables", program("iptables")},
		{"pkg-config", program("pkg-config")},
		{"libseccomp-dev", func() bool { return exec.Command("pkg-config", "--exists", "libseccomp").Run() == nil }},
	}
}

// EnsurePackages installs the Debian packages that building and running the cluster need and that are not there.
func EnsurePackages(ctx context.Context, out io.Writer) error {
	var missing []string
	for _, p := range aptPackages() {
		if !p.has() {
			missing = append(missing, p.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("this machine lacks %s and apt-get: install what is called so on your distribution, then try again", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("this machine lacks %s: run `apt-get install %s` as root, then try again", list, list)
	}
	fmt.Fprintf(out, "installing Debian packages: %s\n", list)
	for _, args := range [][]string{
		{"update", "-qq"},
		append([]string{"install", "-y", "-qq", "--no-install-recommends"}, missing...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, text)
		}
	}
	for _, p := range aptPackages() {
		if !p.has() {
			return errors.New("after installing " + p.name + " what it should bring is still missing: is it on the PATH?")
		}
	}
	return nil
}
