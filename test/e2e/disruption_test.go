//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// killScript ends, without a chance to tidy up, the process of a node that runs the program $1 and has the text $3 in
// the file $2 (environ or cmdline) under /proc. Without such a one it ends the only process of that program: on kind
// every node has its own processes and its kubelet needs no such argument.
const killScript = `found= all=
for dir in /proc/[0-9]*; do
  program=$(tr '\0' '\n' < $dir/cmdline 2>/dev/null | head -n 1)
  if [ "${program##*/}" != "$1" ]; then continue; fi
  all="$all ${dir#/proc/}"
  if tr '\0' '\n' < $dir/$2 2>/dev/null | grep -qxF -e "$3"; then found="$found ${dir#/proc/}"; fi
done
if [ -z "$found" ]; then set -- $all; if [ $# -eq 1 ]; then found=$1; fi; fi
if [ -z "$found" ]; then echo "no process to kill; of the program there are: $all"; exit 1; fi
echo "killing $found"
kill -9 $found
`

// kill ends a process of the node from a privileged pod.
func (s *scene) kill(node, program, file, text string) {
	s.Helper()
	s.start(MakePod("killer").On(node).Runs(killScript, program, file, text).HostProcesses())
	s.must(s.waitPod(s.Context(), "killer", "kill "+program, inPhase(corev1.PodSucceeded)))
}

// tenants starts two pods with a GPU each on the node and returns them when they run.
func (s *scene) tenants(node string) []*corev1.Pod {
	s.Helper()
	s.template(oneGPU())
	names := []string{"tenant-a", "tenant-b"}
	var pods []*corev1.Pod
	for _, name := range names {
		s.start(MakePod(name).On(node).Template("one-gpu"))
	}
	for _, name := range names {
		s.wantView(name, s.look(name), s.allocated(s.claimsOf(name)[0]))
		pods = append(pods, s.getPod(name))
	}
	return pods
}

// wantService checks that the tenants run on, that a new pod gets a GPU, and that all of them can end.
func (s *scene) wantService(node string, tenants []*corev1.Pod) {
	s.Helper()
	s.start(MakePod("newcomer").On(node).Template("one-gpu"))
	s.wantView("a new pod", s.look("newcomer"), s.allocated(s.claimsOf("newcomer")[0]))
	s.wantUndisturbed(tenants...)
	uids := []string{string(s.getClaim(s.claimsOf("newcomer")[0]).UID)}
	names := []string{"newcomer"}
	for _, pod := range tenants {
		names = append(names, pod.Name)
		uids = append(uids, string(s.getClaim(s.claimsOf(pod.Name)[0]).UID))
	}
	s.end(names...)
	s.wantNoRecords(node, uids...)
}

// noRecordsScript waits until the directory $1 has none of the other arguments' records, or no record at all if there
// are no others. Files are all that a pod has to look at, so it looks once a second; the pod's deadline ends it.
const noRecordsScript = `dir=$1; shift
while true; do
  left=
  if [ $# -eq 0 ]; then left=$(ls $dir); fi
  for uid in "$@"; do if ls $dir | grep -q -e "$uid"; then left="$left $uid"; fi; done
  if [ -z "$left" ]; then exit 0; fi
  echo "left: $left"; sleep 1
done
`

// wantNoRecords waits until the node's journal has no record of the claims, or none at all.
func (s *scene) wantNoRecords(node string, uids ...string) {
	s.Helper()
	pod := MakePod("journal-"+node).On(node).HostDir(journalDir).Runs(noRecordsScript, append([]string{journalDir}, uids...)...)
	pod.pod.Spec.ActiveDeadlineSeconds = new(int64(patience/time.Second) - 5)
	s.start(pod)
	s.must(s.waitPod(s.Context(), "journal-"+node, "find no records", inPhase(corev1.PodSucceeded)))
}

func pluginKilled(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	tenants := s.tenants(node)
	slicesBefore, err := s.published(t.Context(), node, nil)
	s.must(err)
	s.restartPlugin(node)
	s.wantService(node, tenants)
	slicesAfter, err := s.published(t.Context(), node, nil)
	s.must(err)
	if got, want := versions(slicesAfter), versions(slicesBefore); !slices.Equal(got, want) {
		t.Errorf("The restart wrote the slices again: %v, before: %v", got, want)
	}
}

// restartPlugin kills the node's plugin and waits until the kubelet has started it again.
func (s *scene) restartPlugin(node string) {
	s.Helper()
	before := s.plugin(node)
	s.kill(node, "dra-kubelet-plugin", "environ", "NODE_NAME="+node)
	from := s.plugins().named(before.Name)
	from.label = ""
	s.must(until(s.Context(), from, "the plugin to be started again", func(pods []*corev1.Pod) error {
		if len(pods) == 0 {
			return hopeless{errors.New("its pod is gone")}
		}
		for _, container := range pods[0].Status.ContainerStatuses {
			if container.Name == "plugin" && container.Ready && container.RestartCount > restarts(before) {
				return nil
			}
		}
		return fmt.Errorf("%+v", pods[0].Status.ContainerStatuses)
	}))
}

// plugin returns the driver's pod on the node.
func (s *scene) plugin(node string) *corev1.Pod {
	s.Helper()
	pods, err := s.pluginsOn(s.Context(), node)
	s.must(err)
	if len(pods) != 1 {
		s.Fatalf("Node %s has %d pods of the driver, want 1", node, len(pods))
	}
	return &pods[0]
}

func (c *cluster) pluginsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := c.CoreV1().Pods(driverNamespace).List(ctx, metav1.ListOptions{LabelSelector: pluginLabels, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the plugin's pods on node %s: %w", node, err)
	}
	return list.Items, nil
}

func restarts(pod *corev1.Pod) int32 {
	for _, container := range pod.Status.ContainerStatuses {
		if container.Name == "plugin" {
			return container.RestartCount
		}
	}
	return 0
}

func versions(pool []*resourceapi.ResourceSlice) []string {
	var all []string
	for _, slice := range pool {
		all = append(all, slice.Name+"@"+slice.ResourceVersion)
	}
	return all
}

func kubeletKilled(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	tenants := s.tenants(node)
	before, err := s.published(t.Context(), node, nil)
	s.must(err)

	s.kill(node, "kubelet", "cmdline", "--hostname-override="+node)
	// The killer's end is told by the new kubelet.
	killed := time.Now()
	// A kubelet deletes its node's slices when it starts, so that new ones show that it has.
	after, err := s.published(t.Context(), node, before)
	s.must(err)
	took := time.Since(killed).Round(time.Millisecond)
	t.Logf("The slices were published again %s after the new kubelet answered", took)
	if took > 15*time.Second {
		t.Errorf("The node was without devices for %s; the plugin must not leave that to the 30 s of its helper library", took)
	}
	if !equality.Semantic.DeepEqual(devicesOf(after), devicesOf(before)) {
		t.Errorf("The devices differ: %+v, before: %+v", devicesOf(after), devicesOf(before))
	}
	s.wantService(node, tenants)
}

func devicesOf(pool []*resourceapi.ResourceSlice) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, slice := range pool {
		devices = append(devices, slice.Spec.Devices...)
	}
	return devices
}

func rollingUpdate(t *testing.T) {
	s := newScene(t)
	s.template(oneGPU())
	before, err := s.CoreV1().Pods(driverNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: pluginLabels})
	s.must(err)

	s.patchDaemonSet(fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"tessera.dev/e2e":%q}}}}}`, time.Now().Format(time.RFC3339Nano)))
	stop := make(chan struct{})
	var stopOnce sync.Once
	end := func() { stopOnce.Do(func() { close(stop) }) }
	group, ctx := errgroup.WithContext(t.Context())
	var counts [3]int
	for worker := range counts {
		group.Go(func() error {
			for last := false; !last; counts[worker]++ {
				select {
				case <-stop:
					// One more, which the new plugin alone serves.
					last = true
				default:
				}
				name := fmt.Sprintf("stream-%d-%d", worker, counts[worker])
				if err := s.passThrough(ctx, MakePod(name).On(s.nodes[(worker+counts[worker])%len(s.nodes)])); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error { defer end(); return s.ready(ctx) })
	s.must(group.Wait())

	for _, old := range before.Items {
		if now, err := s.CoreV1().Pods(driverNamespace).Get(t.Context(), old.Name, metav1.GetOptions{}); err == nil && now.UID == old.UID {
			t.Errorf("Pod %s of the driver was not replaced", old.Name)
		}
	}
	events, err := s.CoreV1().Events(s.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "type=Warning"})
	s.must(err)
	for _, event := range events.Items {
		// The scheduler may find a node's devices taken for a moment; all else is a failure.
		if event.Reason != "FailedScheduling" {
			t.Errorf("Pod %s during the update: %s: %s", event.InvolvedObject.Name, event.Reason, event.Message)
		}
	}
	t.Logf("%v pods came and went during the update", counts)
}

// passThrough runs a pod with one GPU from creation to deletion.
func (s *scene) passThrough(ctx context.Context, b *PodBuilder) error {
	pod := b.Template("one-gpu").Runs(lookScript).Obj()
	pods := s.CoreV1().Pods(s.namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	if err := s.waitPod(ctx, pod.Name, "succeed", inPhase(corev1.PodSucceeded)); err != nil {
		return err
	}
	got, err := s.readView(ctx, pod.Name, "main")
	if err != nil {
		return err
	}
	if len(got.uuids) != 1 || len(got.minors) != 1 {
		return fmt.Errorf("pod %s saw GPUs %q and nodes %q, want one", pod.Name, got.uuids, got.minors)
	}
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return nil
}

func (s *scene) patchDaemonSet(patch string) {
	s.Helper()
	_, err := s.AppsV1().DaemonSets(driverNamespace).Patch(s.Context(), daemonSet, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

func claimDeletedWithoutPlugin(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	s.claim(MakeClaim("forgotten").GPU("gpu"))
	s.start(MakePod("a").On(node).Claim("forgotten"))
	s.look("a")
	uid := string(s.getClaim("forgotten").UID)

	restore := `{"spec":{"template":{"spec":{"nodeSelector":{"tessera.dev/e2e-nowhere":null}}}}}`
	t.Cleanup(func() {
		// Also when the test fails in between; the test's context has ended by then.
		ctx := context.Background()
		_, err := s.AppsV1().DaemonSets(driverNamespace).Patch(ctx, daemonSet, types.MergePatchType, []byte(restore), metav1.PatchOptions{})
		if err := errors.Join(err, s.ready(ctx)); err != nil {
			t.Errorf("Let the plugin run on the nodes again: %v", err)
		}
	})
	s.patchDaemonSet(`{"spec":{"template":{"spec":{"nodeSelector":{"tessera.dev/e2e-nowhere":"true"}}}}}`)
	s.must(until(t.Context(), s.plugins(), "the plugin's pods to end", none[*corev1.Pod]))

	s.must(s.CoreV1().Pods(s.namespace).Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	s.must(s.ResourceV1().ResourceClaims(s.namespace).Delete(t.Context(), "forgotten", metav1.DeleteOptions{}))
	s.must(until(t.Context(), s.claims(s.namespace).named("forgotten"), "the claim to go", none[*resourceapi.ResourceClaim]))

	s.patchDaemonSet(restore)
	s.must(s.ready(t.Context()))
	s.wantNoRecords(node, uid)
	gpus, err := s.gpus(t.Context(), node)
	s.must(err)
	s.claim(MakeClaim("all").GPU("gpus").Count(len(gpus)))
	s.start(MakePod("b").On(node).Claim("all"))
	s.wantView("a pod with all GPUs", s.look("b"), gpus)
}

func journalsEmpty(t *testing.T) {
	s := newScene(t)
	for _, node := range s.nodes {
		s.wantNoRecords(node)
	}
}
