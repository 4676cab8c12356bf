//go:build e2e

package e2e

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	workloadImage = "tessera.dev/busybox:dev"

	// lookScript prints what the container sees of GPUs, line by line.
	lookScript = `for f in /dev/nvidia*; do if [ -c "$f" ]; then echo "node ${f#/dev/}"; fi; done
nvidia-smi -L
echo ready
`
	// stayScript keeps a container running until it is asked to end. The shell is process 1 and must catch the signal.
	stayScript = `trap 'exit 0' TERM
` + lookScript + `sleep 3600 & wait
`
)

// PodBuilder makes pods whose containers look at their GPUs and stay.
type PodBuilder struct{ pod corev1.Pod }

// MakePod starts a pod with one container named main.
func MakePod(name string) *PodBuilder {
	b := &PodBuilder{pod: corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			DNSPolicy:                     corev1.DNSDefault,
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(int64(2)),
		},
	}}
	return b.Container("main")
}

// Container adds a container.
func (b *PodBuilder) Container(name string) *PodBuilder {
	b.pod.Spec.Containers = append(b.pod.Spec.Containers, corev1.Container{
		Name:            name,
		Image:           workloadImage,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"sh", "-c", stayScript},
	})
	return b
}

// Runs replaces what the last container runs.
func (b *PodBuilder) Runs(script string, args ...string) *PodBuilder {
	b.last().Command = append([]string{"sh", "-c", script, "sh"}, args...)
	return b
}

func (b *PodBuilder) last() *corev1.Container {
	return &b.pod.Spec.Containers[len(b.pod.Spec.Containers)-1]
}

// On pins the pod to a node, through the scheduler.
func (b *PodBuilder) On(node string) *PodBuilder {
	b.pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}}
	return b
}

// Claim gives all containers of the pod an existing claim.
func (b *PodBuilder) Claim(name string) *PodBuilder {
	b.pod.Spec.ResourceClaims = append(b.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	return b
}

// Template gives all containers of the pod a claim of its own.
func (b *PodBuilder) Template(name string) *PodBuilder {
	b.pod.Spec.ResourceClaims = append(b.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &name})
	return b
}

// HostProcesses lets the pod see and end the node's processes.
func (b *PodBuilder) HostProcesses() *PodBuilder {
	b.pod.Spec.HostPID = true
	b.last().SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	return b
}

// HostDir mounts a directory of the node at the same path.
func (b *PodBuilder) HostDir(path string) *PodBuilder {
	b.pod.Spec.Volumes = append(b.pod.Spec.Volumes, corev1.Volume{
		Name:         "host",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
	})
	b.last().VolumeMounts = []corev1.VolumeMount{{Name: "host", MountPath: path}}
	return b
}

// Obj returns the pod; every container has every claim.
func (b *PodBuilder) Obj() *corev1.Pod {
	pod := b.pod.DeepCopy()
	for i := range pod.Spec.Containers {
		for _, claim := range pod.Spec.ResourceClaims {
			resources := &pod.Spec.Containers[i].Resources
			resources.Claims = append(resources.Claims, corev1.ResourceClaim{Name: claim.Name})
		}
	}
	return pod
}

// ClaimBuilder makes claims and claim templates.
type ClaimBuilder struct {
	name string
	spec resourceapi.ResourceClaimSpec
}

// MakeClaim starts a claim without requests.
func MakeClaim(name string) *ClaimBuilder { return &ClaimBuilder{name: name} }

// GPU adds a request for one whole GPU.
func (b *ClaimBuilder) GPU(request string) *ClaimBuilder { return b.request(request, gpuClass) }

// Monitor adds a request for one monitor device.
func (b *ClaimBuilder) Monitor(request string) *ClaimBuilder { return b.request(request, monitorClass) }

func (b *ClaimBuilder) request(name, class string) *ClaimBuilder {
	b.spec.Devices.Requests = append(b.spec.Devices.Requests, resourceapi.DeviceRequest{
		Name:    name,
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class},
	})
	return b
}

func (b *ClaimBuilder) last() *resourceapi.ExactDeviceRequest {
	return b.spec.Devices.Requests[len(b.spec.Devices.Requests)-1].Exactly
}

// Count sets how many devices the last request wants.
func (b *ClaimBuilder) Count(n int) *ClaimBuilder {
	b.last().AllocationMode = resourceapi.DeviceAllocationModeExactCount
	b.last().Count = int64(n)
	return b
}

// Admin turns the last request into one with admin access.
func (b *ClaimBuilder) Admin() *ClaimBuilder {
	b.last().AdminAccess = new(true)
	return b
}

// CEL narrows the last request.
func (b *ClaimBuilder) CEL(expression string) *ClaimBuilder {
	b.last().Selectors = append(b.last().Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	return b
}

// Match wants the attribute to be the same on all devices of the claim.
func (b *ClaimBuilder) Match(attribute string) *ClaimBuilder {
	b.spec.Devices.Constraints = append(b.spec.Devices.Constraints, resourceapi.DeviceConstraint{
		MatchAttribute: new(resourceapi.FullyQualifiedName(attribute)),
	})
	return b
}

// Obj returns the claim.
func (b *ClaimBuilder) Obj() *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: b.name}, Spec: *b.spec.DeepCopy()}
}

// TemplateObj returns a template that makes such claims.
func (b *ClaimBuilder) TemplateObj() *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: b.name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: *b.spec.DeepCopy()},
	}
}

// oneGPU is the template that most tests use.
func oneGPU() *ClaimBuilder { return MakeClaim("one-gpu").GPU("gpu") }

func sorted(values []string) []string { return slices.Sorted(slices.Values(values)) }
