//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podSeesItsGPU(t *testing.T) {
	s := newScene(t)
	s.template(oneGPU())
	s.start(MakePod("a").Template("one-gpu"))
	got := s.look("a")
	devices := s.allocated(s.claimsOf("a")[0])
	if len(devices) != 1 {
		t.Errorf("The claim has %d devices, want 1", len(devices))
	}
	s.wantView("pod a", got, devices)
}

func podsGetDifferentGPUs(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	gpus, err := s.gpus(t.Context(), node)
	s.must(err)
	s.template(oneGPU())
	for i := range gpus {
		s.start(MakePod(fmt.Sprintf("pod-%d", i)).On(node).Template("one-gpu"))
	}
	owner := map[string]string{}
	for i := range gpus {
		pod := fmt.Sprintf("pod-%d", i)
		got := s.look(pod)
		s.wantView(pod, got, s.allocated(s.claimsOf(pod)[0]))
		for _, uuid := range got.uuids {
			if owner[uuid] != "" {
				t.Errorf("%s and %s both have GPU %s", owner[uuid], pod, uuid)
			}
			owner[uuid] = pod
		}
	}
	if len(owner) != len(gpus) {
		t.Errorf("%d pods have %d different GPUs", len(gpus), len(owner))
	}

	s.start(MakePod("one-too-many").On(node).Template("one-gpu"))
	s.waitUnschedulable("one-too-many")
	freed := s.allocated(s.claimsOf("pod-3")[0])
	s.end("pod-3")
	s.wantView("the pod that waited", s.look("one-too-many"), freed)
}

func claimForWholeNode(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	gpus, err := s.gpus(t.Context(), node)
	s.must(err)
	s.claim(MakeClaim("all").GPU("gpus").Count(len(gpus)))
	s.start(MakePod("a").On(node).Claim("all"))
	s.wantView("pod a", s.look("a"), gpus)
}

func containersShareClaim(t *testing.T) {
	s := newScene(t)
	s.claim(MakeClaim("shared").GPU("gpu"))
	s.start(MakePod("a").Container("second").Claim("shared"))
	for _, container := range []string{"main", "second"} {
		s.wantView("container "+container, s.look("a", container), s.allocated("shared"))
	}
}

func podsShareClaim(t *testing.T) {
	s := newScene(t)
	s.claim(MakeClaim("shared").GPU("gpu"))
	s.start(MakePod("a").Claim("shared"), MakePod("b").Claim("shared"))
	for _, pod := range []string{"a", "b"} {
		s.wantView("pod "+pod, s.look(pod), s.allocated("shared"))
	}
	// The claim stays prepared for the second when the first ends.
	s.end("a")
	s.wantUndisturbed(s.getPod("b"))
	s.start(MakePod("c").Claim("shared"))
	s.wantView("pod c", s.look("c"), s.allocated("shared"))
}

func podWithTwoClaims(t *testing.T) {
	s := newScene(t)
	s.template(oneGPU())
	s.claim(MakeClaim("other").GPU("gpu"))
	s.start(MakePod("a").Template("one-gpu").Claim("other"))
	got := s.look("a")
	var devices []device
	for _, claim := range s.claimsOf("a") {
		devices = append(devices, s.allocated(claim)...)
	}
	if len(devices) != 2 {
		t.Errorf("The pod's claims have %d devices, want 2", len(devices))
	}
	s.wantView("pod a", got, devices)
}

func claimWithSeveralRequests(t *testing.T) {
	s := newScene(t)
	s.claim(MakeClaim("several").GPU("first").GPU("second").GPU("third"))
	s.start(MakePod("a").Claim("several"))
	got := s.look("a")
	devices := s.allocated("several")
	if len(devices) != 3 {
		t.Errorf("The claim has %d devices, want 3", len(devices))
	}
	s.wantView("pod a", got, devices)
}

// attributeOf is how CEL names one of the driver's attributes.
func attributeOf(name string) string {
	return fmt.Sprintf("device.attributes[%q].%s", driverName, name)
}

const memoryCapacity = `device.capacity["` + driverName + `"].memory`

func selectorsFind(t *testing.T) {
	s := newScene(t)
	gpus, err := s.gpus(t.Context(), s.nodes[len(s.nodes)-1])
	s.must(err)
	// The last GPU is the one that other tests are least likely to hold.
	sample := gpus[len(gpus)-1]
	memory := sample.Capacity["memory"].Value
	selectors := []struct{ name, expression string }{
		{"uuid", fmt.Sprintf("%s == %q", attributeOf("uuid"), sample.text("uuid"))},
		{"product", fmt.Sprintf("%s == %q", attributeOf("productName"), sample.text("productName"))},
		{"memory", fmt.Sprintf("%s.compareTo(quantity(%q)) >= 0", memoryCapacity, memory.String())},
		{"driver", fmt.Sprintf("%s.compareTo(semver(%q)) >= 0", attributeOf("driverVersion"), sample.text("driverVersion"))},
	}
	for _, selector := range selectors {
		s.claim(MakeClaim(selector.name).GPU("gpu").CEL(selector.expression))
		s.start(MakePod(selector.name).Claim(selector.name))
		s.wantView(selector.expression, s.look(selector.name), s.allocated(selector.name))
	}
	if devices := s.allocated("uuid"); devices[0].text("uuid") != sample.text("uuid") {
		t.Errorf("Asked for GPU %s, got %s", sample.text("uuid"), devices[0].text("uuid"))
	}
}

func selectorsExclude(t *testing.T) {
	s := newScene(t)
	selectors := map[string]string{
		"product": attributeOf("productName") + ` == "a card that nobody makes"`,
		"memory":  memoryCapacity + `.compareTo(quantity("100Ti")) >= 0`,
		"driver":  attributeOf("driverVersion") + `.compareTo(semver("9999.0.0")) >= 0`,
	}
	for name, selector := range selectors {
		s.claim(MakeClaim(name).GPU("gpu").CEL(selector))
		s.start(MakePod(name).Claim(name))
	}
	for name := range selectors {
		s.waitUnschedulable(name)
	}
}

// values groups the whole GPUs of a node by an attribute.
func values(gpus []device, attribute string) map[string][]device {
	groups := map[string][]device{}
	for _, gpu := range gpus {
		if value := gpu.text(attribute); value != "" {
			groups[value] = append(groups[value], gpu)
		}
	}
	return groups
}

func largest(groups map[string][]device) int {
	size := 0
	for _, group := range groups {
		size = max(size, len(group))
	}
	return size
}

func matchNUMANode(t *testing.T) {
	s := newScene(t)
	node := s.nodes[len(s.nodes)-1]
	gpus, err := s.gpus(t.Context(), node)
	s.must(err)
	size := largest(values(gpus, attributeNUMANode))
	if size < 2 {
		t.Fatalf("No two GPUs of node %s share a NUMA node: %v", node, values(gpus, attributeNUMANode))
	}
	s.claim(MakeClaim("near").GPU("gpus").Count(size).Match(attributeNUMANode))
	s.claim(MakeClaim("too-many").GPU("gpus").Count(size + 1).Match(attributeNUMANode))
	s.start(MakePod("a").On(node).Claim("near"), MakePod("b").On(node).Claim("too-many"))
	got := s.look("a")
	devices := s.allocated("near")
	s.wantView("pod a", got, devices)
	if len(devices) != size || len(values(devices, attributeNUMANode)) != 1 {
		t.Errorf("%d GPUs of NUMA nodes %v, want %d of one", len(devices), values(devices, attributeNUMANode), size)
	}
	s.waitUnschedulable("b")
}

func matchPCIeRoot(t *testing.T) {
	s := newScene(t)
	node := s.nodes[0]
	gpus, err := s.gpus(t.Context(), node)
	s.must(err)
	roots := values(gpus, attributePCIeRoot)
	size := largest(roots)
	if size == 0 {
		t.Fatalf("The GPUs of node %s have no attribute %s", node, attributePCIeRoot)
	}
	t.Logf("Node %s has %d GPUs under %d PCIe roots, at most %d under one", node, len(gpus), len(roots), size)
	s.claim(MakeClaim("too-many").GPU("gpus").Count(size + 1).Match(attributePCIeRoot))
	s.start(MakePod("b").On(node).Claim("too-many"))
	// One root is named, so that a machine with one GPU under each shows that the attribute selects, too.
	selector := fmt.Sprintf(`device.attributes["resource.kubernetes.io"].pcieRoot == %q`, largestRoot(roots))
	s.claim(MakeClaim("near").GPU("gpus").Count(size).Match(attributePCIeRoot).CEL(selector))
	s.start(MakePod("a").On(node).Claim("near"))
	got := s.look("a")
	devices := s.allocated("near")
	s.wantView("pod a", got, devices)
	if len(devices) != size || len(values(devices, attributePCIeRoot)) != 1 {
		t.Errorf("%d GPUs of PCIe roots %v, want %d of one", len(devices), values(devices, attributePCIeRoot), size)
	}
	s.waitUnschedulable("b")
}

// largestRoot returns the value with the most GPUs; of several, the last by name, which others are likely to leave free.
func largestRoot(groups map[string][]device) string {
	best := ""
	for value, group := range groups {
		if len(group) > len(groups[best]) || len(group) == len(groups[best]) && strings.Compare(value, best) > 0 {
			best = value
		}
	}
	return best
}

func doubleAllocation(t *testing.T) {
	s := newScene(t)
	s.claim(MakeClaim("rightful").GPU("gpu"))
	s.start(MakePod("a").Claim("rightful"))
	s.look("a")
	before := s.getPod("a")

	second := s.claim(MakeClaim("intruder").GPU("gpu"))
	second.Status.Allocation = s.getClaim("rightful").Status.Allocation.DeepCopy()
	_, err := s.ResourceV1().ResourceClaims(s.namespace).UpdateStatus(t.Context(), second, metav1.UpdateOptions{})
	s.must(err)
	s.start(MakePod("b").Claim("intruder"))
	s.wantEvent("b", "FailedPrepareDynamicResources", s.namespace+"/rightful", s.namespace+"/intruder")

	s.end("b")
	s.wantUndisturbed(before)
	s.wantView("pod a after the intruder", s.look("a"), s.allocated("rightful"))
}

func adminAccess(t *testing.T) {
	s := newScene(t, resourceapi.DRAAdminNamespaceLabelKey, "true")
	s.claim(MakeClaim("tenant").GPU("gpu"))
	s.start(MakePod("tenant").Claim("tenant"))
	s.look("tenant")
	before := s.getPod("tenant")
	devices := s.allocated("tenant")

	selector := fmt.Sprintf("%s == %q", attributeOf("uuid"), devices[0].text("uuid"))
	s.claim(MakeClaim("admin").Monitor("look").Admin().CEL(selector))
	s.start(MakePod("admin").Claim("admin"))
	s.wantView("the admin's pod", s.look("admin"), devices)

	s.end("admin")
	s.wantUndisturbed(before)
	// A pod that joins the tenant's claim shows that the claim is still prepared.
	s.start(MakePod("tenant-2").Claim("tenant"))
	s.wantView("the tenant's second pod", s.look("tenant-2"), devices)
}

func monitorWithoutAdmin(t *testing.T) {
	s := newScene(t)
	s.claim(MakeClaim("nosy").Monitor("look"))
	s.start(MakePod("a").Claim("nosy"))
	s.wantEvent("a", "FailedPrepareDynamicResources", s.namespace+"/nosy", "adminAccess")
}

// wantUndisturbed checks that the pods still run in the same containers, none of which was started again.
func (s *scene) wantUndisturbed(pods ...*corev1.Pod) {
	s.Helper()
	for _, before := range pods {
		now := s.getPod(before.Name)
		if now.UID != before.UID || now.Status.Phase != corev1.PodRunning || now.DeletionTimestamp != nil {
			s.Errorf("Pod %s was disturbed: it is %s, UID %s, was %s", before.Name, now.Status.Phase, now.UID, before.UID)
		}
		for i, container := range now.Status.ContainerStatuses {
			if old := before.Status.ContainerStatuses[i]; container.ContainerID != old.ContainerID || container.RestartCount != old.RestartCount {
				s.Errorf("Container %s of pod %s was started again: %+v, was %+v", container.Name, before.Name, container, old)
			}
		}
	}
}
