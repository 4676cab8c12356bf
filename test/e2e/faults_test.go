//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// onNode runs a script on the node with its directory mounted, and waits until it succeeded.
func (s *scene) onNode(node, pod, dir, script string, args ...string) {
	s.Helper()
	s.start(MakePod(pod).On(node).HostDir(dir).Runs(script, args...))
	s.must(s.waitPod(s.Context(), pod, "succeed", inPhase(corev1.PodSucceeded)))
}

func recordTruncated(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	tenants := s.tenants(node)
	start := time.Now()
	record := journalDir + "/" + string(s.getClaim(s.claimsOf(tenants[0].Name)[0]).UID) + ".json"

	s.onNode(node, "truncate", journalDir, `set -e; test -s "$1"; head -c 20 "$1" > "$1.cut"; mv "$1.cut" "$1"`, record)
	s.restartPlugin(node)
	s.wantEventOn("default", node, start, "JournalRecordCorrupt", record)
	s.onNode(node, "tidy", journalDir, `set -e; test -e "$1.corrupt"; rm "$1.corrupt"`, record)
	s.wantService(node, tenants)
}

func gpuLostAtStart(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	s.template(oneGPU())
	before, err := s.published(t.Context(), node, nil)
	s.must(err)
	gpus, err := s.gpus(t.Context(), node)
	s.must(err)
	lost := gpus[len(gpus)/2]
	start := time.Now()

	t.Cleanup(func() {
		// Also when the test fails in between; the test's context has ended by then.
		ctx := context.Background()
		if err := s.fault(ctx, node, "clear"); err != nil {
			t.Error(err)
		}
		// Discovery runs every 30 s.
		_, err := s.publishedAs(ctx, node, func(pool []*resourceapi.ResourceSlice) error {
			if len(devicesOf(pool)) != len(devicesOf(before)) {
				return fmt.Errorf("it has %d devices, want %d", len(devicesOf(pool)), len(devicesOf(before)))
			}
			return nil
		})
		if err != nil {
			t.Errorf("The GPU did not come back: %v", err)
		}
	})
	s.must(s.fault(t.Context(), node, "lost", "--minor", lost.text("minor")))
	s.restartPlugin(node)
	_, err = s.publishedAs(t.Context(), node, func(pool []*resourceapi.ResourceSlice) error {
		var want []string
		for _, d := range devicesOf(before) {
			if minor := d.Attributes["minor"].IntValue; minor == nil || fmt.Sprint(*minor) != lost.text("minor") {
				want = append(want, d.Name)
			}
		}
		var got []string
		for _, d := range devicesOf(pool) {
			got = append(got, d.Name)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("it has %q, want %q", got, want)
		}
		return nil
	})
	s.must(err)
	s.wantEventOn("default", node, start, "GPUDiscoveryFailed")
	s.start(MakePod("a").On(node).Template("one-gpu"))
	s.wantView("pod a", s.look("a"), s.allocated(s.claimsOf("a")[0]))
}

// fault changes the faults of the node's simulated machine.
func (s *scene) fault(ctx context.Context, node string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	plugins, err := s.pluginsOn(ctx, node)
	if err != nil {
		return err
	}
	if len(plugins) != 1 {
		return errors.New("the plugin does not run on node " + node)
	}
	command := []string{"exec", "--namespace", driverNamespace, plugins[0].Name, "--container", "plugin", "--", "dra-kubelet-plugin", "sim", "fault"}
	_, err = run(ctx, nil, "kubectl", append(command, args...)...)
	return err
}
