//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scene is a test with a namespace of its own, which goes when the test ends.
type scene struct {
	*testing.T
	*cluster
	namespace string
	nodes     []string
}

// newScene makes a namespace with the labels (key, value, …). When the test fails, what happened in it is logged.
func newScene(t *testing.T, labels ...string) *scene {
	t.Helper()
	c, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t, cluster: c}
	if s.nodes, err = c.gpuNodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: map[string]string{}}}
	for pair := range slices.Chunk(labels, 2) {
		namespace.Labels[pair[0]] = pair[1]
	}
	namespace, err = c.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	s.namespace = namespace.Name
	t.Cleanup(s.close)
	// Pods are refused until the namespace has its service account.
	accounts := source{getter: c.CoreV1().RESTClient(), resource: "serviceaccounts", namespace: s.namespace}.named("default")
	s.must(until(t.Context(), accounts, "the namespace's service account", func(found []*corev1.ServiceAccount) error {
		if len(found) == 0 {
			return errors.New("it is not there")
		}
		return nil
	}))
	return s
}

func (s *scene) close() {
	// The test's context has ended by now.
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if s.Failed() {
		s.dump(ctx)
	}
	err := s.CoreV1().Pods(s.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	err = errors.Join(err,
		until(ctx, s.pods(s.namespace), "the test's pods to end", none[*corev1.Pod]),
		s.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{}))
	namespaces := source{getter: s.CoreV1().RESTClient(), resource: "namespaces"}.named(s.namespace)
	err = errors.Join(err, until(ctx, namespaces, "the test's namespace to end", none[*corev1.Namespace]))
	if err != nil {
		s.Errorf("Clean up: %v", err)
	}
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scene) template(b *ClaimBuilder) {
	s.Helper()
	_, err := s.ResourceV1().ResourceClaimTemplates(s.namespace).Create(s.Context(), b.TemplateObj(), metav1.CreateOptions{})
	s.must(err)
}

func (s *scene) claim(b *ClaimBuilder) *resourceapi.ResourceClaim {
	s.Helper()
	claim, err := s.ResourceV1().ResourceClaims(s.namespace).Create(s.Context(), b.Obj(), metav1.CreateOptions{})
	s.must(err)
	return claim
}

func (s *scene) getClaim(name string) *resourceapi.ResourceClaim {
	s.Helper()
	claim, err := s.ResourceV1().ResourceClaims(s.namespace).Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	return claim
}

func (s *scene) start(builders ...*PodBuilder) {
	s.Helper()
	for _, b := range builders {
		_, err := s.CoreV1().Pods(s.namespace).Create(s.Context(), b.Obj(), metav1.CreateOptions{})
		s.must(err)
	}
}

func (s *scene) getPod(name string) *corev1.Pod {
	s.Helper()
	pod, err := s.CoreV1().Pods(s.namespace).Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	return pod
}

// end deletes pods and waits until they are gone, which the kubelet allows only after their claims were unprepared.
func (s *scene) end(names ...string) {
	s.Helper()
	for _, name := range names {
		s.must(s.CoreV1().Pods(s.namespace).Delete(s.Context(), name, metav1.DeleteOptions{}))
	}
	for _, name := range names {
		s.must(until(s.Context(), s.pods(s.namespace).named(name), "pod "+name+" to end", none[*corev1.Pod]))
	}
}

// waitPod waits until check accepts the pod.
func (s *scene) waitPod(ctx context.Context, name, what string, check func(*corev1.Pod) error) error {
	return until(ctx, s.pods(s.namespace).named(name), "pod "+name+" to "+what, func(pods []*corev1.Pod) error {
		if len(pods) == 0 {
			return errors.New("there is no such pod")
		}
		return check(pods[0])
	})
}

func inPhase(want corev1.PodPhase) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		phase := pod.Status.Phase
		if phase == want {
			return nil
		}
		err := fmt.Errorf("it is %s: %+v %+v", phase, pod.Status.Conditions, pod.Status.ContainerStatuses)
		if phase == corev1.PodFailed || phase == corev1.PodSucceeded {
			return hopeless{err}
		}
		return err
	}
}

// waitUnschedulable waits until the scheduler says of the pod that no node has what its claims ask for.
func (s *scene) waitUnschedulable(name string) {
	s.Helper()
	s.must(s.waitPod(s.Context(), name, "be unschedulable", func(pod *corev1.Pod) error {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable &&
				strings.Contains(condition.Message, "cannot allocate all claims") {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", pod.Status.Conditions)
	}))
}

// view is what a container saw.
type view struct {
	// minors are the names under /dev of GPU nodes, control the other nvidia nodes.
	minors, control []string
	// uuids are what nvidia-smi -L listed.
	uuids []string
}

var (
	minorNode = regexp.MustCompile(`^nvidia\d+$`)
	smiLine   = regexp.MustCompile(`^GPU \d+: .+ \(UUID: (GPU-[0-9a-f-]+)\)$`)
)

// look waits until the pod runs and returns what its container (the first, if no name is given) saw.
func (s *scene) look(pod string, container ...string) view {
	s.Helper()
	s.must(s.waitPod(s.Context(), pod, "run", inPhase(corev1.PodRunning)))
	name := "main"
	if len(container) > 0 {
		name = container[0]
	}
	v, err := s.readView(s.Context(), pod, name)
	s.must(err)
	return v
}

// readView follows the container's log until it says that it has looked at everything.
func (s *scene) readView(ctx context.Context, pod, container string) (v view, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	options := &corev1.PodLogOptions{Container: container, Follow: true}
	stream, err := s.CoreV1().Pods(s.namespace).GetLogs(pod, options).Stream(ctx)
	if err != nil {
		return v, fmt.Errorf("read the log of pod %s: %w", pod, err)
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	var lines []string
	for scanner := bufio.NewScanner(stream); scanner.Scan(); {
		line := scanner.Text()
		lines = append(lines, line)
		if line == "ready" {
			return v, nil
		}
		node, isNode := strings.CutPrefix(line, "node ")
		match := smiLine.FindStringSubmatch(line)
		switch {
		case isNode && minorNode.MatchString(node):
			v.minors = append(v.minors, node)
		case isNode:
			v.control = append(v.control, node)
		case match != nil:
			v.uuids = append(v.uuids, match[1])
		}
	}
	return v, fmt.Errorf("the log of pod %s ended early: %q (%v)", pod, lines, ctx.Err())
}

// allocated returns the devices that the claim was given.
func (s *scene) allocated(claim string) []device {
	s.Helper()
	allocation := s.getClaim(claim).Status.Allocation
	if allocation == nil {
		s.Fatalf("Claim %s has no allocation", claim)
	}
	gpus, err := s.gpus(s.Context(), "")
	s.must(err)
	var devices []device
	for _, result := range allocation.Devices.Results {
		i := slices.IndexFunc(gpus, func(d device) bool { return d.pool == result.Pool && d.name == result.Device })
		if i < 0 {
			s.Fatalf("Claim %s has %s/%s, which is not a published GPU", claim, result.Pool, result.Device)
		}
		devices = append(devices, gpus[i])
	}
	return devices
}

// claimsOf returns the names of the claims that the pod uses, those made from templates too.
func (s *scene) claimsOf(pod string) []string {
	s.Helper()
	var names []string
	for _, status := range s.getPod(pod).Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			names = append(names, *status.ResourceClaimName)
		}
	}
	for _, claim := range s.getPod(pod).Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			names = append(names, *claim.ResourceClaimName)
		}
	}
	return names
}

// wantView compares what a container saw with the devices.
func (s *scene) wantView(who string, got view, devices []device) {
	s.Helper()
	var uuids, minors []string
	for _, d := range devices {
		uuids = append(uuids, d.text("uuid"))
		minors = append(minors, "nvidia"+d.text("minor"))
	}
	if !slices.Equal(sorted(got.uuids), sorted(uuids)) {
		s.Errorf("%s: nvidia-smi lists %q, the claim's devices are %q", who, got.uuids, uuids)
	}
	if !slices.Equal(sorted(got.minors), sorted(minors)) {
		s.Errorf("%s: /dev has %q, want %q", who, got.minors, minors)
	}
	for _, control := range []string{"nvidiactl", "nvidia-uvm"} {
		if !slices.Contains(got.control, control) {
			s.Errorf("%s: /dev lacks %s, it has %q", who, control, got.control)
		}
	}
}

// dump logs what helps to find out why the test failed.
func (s *scene) dump(ctx context.Context) {
	if pods, err := s.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, pod := range pods.Items {
			s.Logf("pod %s on %s: %s %+v %+v %+v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Conditions, pod.Status.ContainerStatuses, pod.Status.ResourceClaimStatuses)
			for _, container := range pod.Spec.Containers {
				s.dumpLog(ctx, pod.Namespace, pod.Name, container.Name, 20)
			}
		}
	}
	if claims, err := s.ResourceV1().ResourceClaims(s.namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, claim := range claims.Items {
			s.Logf("claim %s (%s): %+v", claim.Name, claim.UID, claim.Status)
		}
	}
	if events, err := s.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for _, event := range events.Items {
			s.Logf("event %s %s/%s %s: %s", event.LastTimestamp.Format(time.TimeOnly), event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
		}
	}
	if plugins, err := s.CoreV1().Pods(driverNamespace).List(ctx, metav1.ListOptions{LabelSelector: pluginLabels}); err == nil {
		for _, pod := range plugins.Items {
			s.Logf("plugin %s on %s: %s %+v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.ContainerStatuses)
			s.dumpLog(ctx, pod.Namespace, pod.Name, "plugin", 80)
		}
	}
}

func (s *scene) dumpLog(ctx context.Context, namespace, pod, container string, lines int64) {
	log, err := s.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, TailLines: &lines}).DoRaw(ctx)
	if err != nil && !apierrors.IsNotFound(err) {
		log = []byte(err.Error())
	}
	s.Logf("log of %s/%s %s:\n%s", namespace, pod, container, log)
}

// wantEvent waits for an event about the pod that has the reason and all of the texts.
func (s *scene) wantEvent(pod, reason string, texts ...string) {
	s.Helper()
	s.wantEventOn(s.namespace, pod, time.Time{}, reason, texts...)
}

// wantEventOn waits for an event that is not older than since. Events on nodes are in the namespace default.
func (s *scene) wantEventOn(namespace, object string, since time.Time, reason string, texts ...string) {
	s.Helper()
	from := source{getter: s.CoreV1().RESTClient(), resource: "events", namespace: namespace, field: "involvedObject.name=" + object}
	s.must(until(s.Context(), from, "an event "+reason+" on "+object, func(events []*corev1.Event) error {
		var seen []string
		for _, event := range events {
			last := event.LastTimestamp.Time
			if last.IsZero() {
				last = event.EventTime.Time
			}
			// Timestamps of events are whole seconds.
			has := !last.Before(since.Truncate(time.Second)) && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(event.Message, text) })
			if event.Reason == reason && has {
				return nil
			}
			seen = append(seen, event.Reason+": "+event.Message)
		}
		return fmt.Errorf("none has all of %q; there are %q", texts, seen)
	}))
}
