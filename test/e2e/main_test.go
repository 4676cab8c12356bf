//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const chartDir = "../../deployments/helm/tessera"

// TestMain makes sure that the driver runs on simulated machines before the first test. It leaves the driver installed;
// the last test of the package removes it.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := install(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "The driver could not be installed for the tests:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// install installs the chart unless the driver is there, and waits until every node has published its GPUs.
func install(ctx context.Context) error {
	c, err := connect()
	if err != nil {
		return err
	}
	_, err = c.AppsV1().DaemonSets(driverNamespace).Get(ctx, daemonSet, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if _, err := run(ctx, nil, "helm", chartArgs("upgrade", "--install", "tessera", chartDir, "--create-namespace")...); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("look for the driver's DaemonSet: %w", err)
	}
	return c.ready(ctx)
}

// chartArgs adds the namespace and the values of a simulated DGX H100 on every node.
func chartArgs(args ...string) []string {
	return append(args, "--namespace", driverNamespace,
		"--set", "image.tag=dev",
		"--set", "simulation.enabled=true",
		"--set", "simulation.nodes[0].profile=dgx-h100")
}

// run runs a program and returns what it printed; the error has that too.
func run(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}
