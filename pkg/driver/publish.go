package driver

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/inventory"
	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/topology"
)

// trouble is something that an admin should know, as an event on the Node.
type trouble struct{ reason, message string }

// discover looks at the hardware, reports what failed, remembers the rest and describes it to container runtimes.
func (d *Driver) discover(ctx context.Context) {
	logger := klog.FromContext(ctx)
	machine, failures, err := d.hardware.Discover(ctx)
	if err != nil {
		failures = append(failures, nvml.Failure{Index: -1, Minor: -1, Call: "Discover", Err: err})
	}
	standing := map[trouble]bool{}
	for _, failure := range failures {
		logger.Error(failure.Err, "A GPU could not be read and is left out",
			"index", failure.Index, "uuid", failure.UUID, "busID", failure.BusID, "call", failure.Call)
		standing[trouble{"GPUDiscoveryFailed", failureMessage(failure)}] = true
	}
	d.metrics.failures.Add(float64(len(failures)))
	d.metrics.gpus.WithLabelValues("healthy").Set(float64(len(machine.GPUs)))
	d.metrics.gpus.WithLabelValues("failed").Set(float64(len(failures)))
	d.machine.Store(&machine)

	changed, err := d.specs.WriteBase(ctx, machine)
	if err != nil {
		// Prepare tries again and tells the pod; here the admin is told.
		logger.Error(err, "The CDI specification could not be written in full")
		standing[trouble{"CDISpecFailed", err.Error()}] = true
	}
	if changed {
		logger.Info("Wrote the CDI specification", "gpus", len(machine.GPUs), "driverVersion", machine.DriverVersion)
	}
	d.tell(standing)
}

func failureMessage(failure nvml.Failure) string {
	if failure.Index < 0 {
		return fmt.Sprintf("No GPU of this node can be read: %v", failure.Err)
	}
	return fmt.Sprintf("GPU index %d %s %s is left out: %v", failure.Index, failure.UUID, failure.BusID, failure.Err)
}

// tell sends an event for each trouble that did not stand at the last look. Discovery alone calls it, one at a time.
func (d *Driver) tell(standing map[trouble]bool) {
	for _, t := range slices.SortedFunc(maps.Keys(standing), func(a, b trouble) int { return strings.Compare(a.message, b.message) }) {
		if !d.told[t] {
			d.reporter.Warn(t.reason, t.message)
		}
	}
	d.told = standing
}

// publisher keeps the node's pool in the API server equal to what discovery saw.
type publisher struct {
	driver *Driver
	helper *kubeletplugin.Helper

	mu        sync.Mutex
	published topology.Machine
}

// publish hands the current machine's slices to the helper, which writes only what differs.
func (p *publisher) publish(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	machine := p.driver.Machine()
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		p.driver.config.NodeName: {Slices: poolSlices(inventory.Slices(machine))},
	}}
	if err := p.helper.PublishResources(ctx, resources); err != nil {
		return fmt.Errorf("publish the ResourceSlices of node %s: %w", p.driver.config.NodeName, err)
	}
	p.published = machine
	return nil
}

func poolSlices(slicesOfPool []inventory.Slice) []resourceslice.Slice {
	published := make([]resourceslice.Slice, 0, len(slicesOfPool))
	for _, s := range slicesOfPool {
		published = append(published, resourceslice.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters})
	}
	return published
}

func (p *publisher) rediscover(ctx context.Context) {
	p.driver.discover(ctx)
	p.mu.Lock()
	same := reflect.DeepEqual(p.published, p.driver.Machine())
	p.mu.Unlock()
	if same {
		return
	}
	klog.FromContext(ctx).Info("The node's GPUs changed", "minors", minors(p.driver.Machine()))
	p.publishOrReport(ctx)
}

func (p *publisher) publishOrReport(ctx context.Context) {
	if err := p.publish(ctx); err != nil && ctx.Err() == nil {
		p.driver.HandleError(ctx, fmt.Errorf("%w: %w", kubeletplugin.ErrRecoverable, err), "Publishing failed")
	}
}

func minors(machine topology.Machine) []int {
	numbers := make([]int, 0, len(machine.GPUs))
	for _, gpu := range machine.GPUs {
		numbers = append(numbers, gpu.Minor)
	}
	return numbers
}

// watchDeletions publishes again at once when somebody deletes this node's slices. The kubelet does so whenever it
// starts, and the helper alone would leave the node without devices for 30 s.
func (p *publisher) watchDeletions(ctx context.Context, client kubernetes.Interface) {
	list := cache.NewFilteredListWatchFromClient(client.ResourceV1().RESTClient(), "resourceslices", metav1.NamespaceAll,
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.Set{
				resourceapi.ResourceSliceSelectorNodeName: p.driver.config.NodeName,
				resourceapi.ResourceSliceSelectorDriver:   p.driver.config.DriverName,
			}.String()
		})
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: list,
		ObjectType:    &resourceapi.ResourceSlice{},
		Handler: cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
			klog.FromContext(ctx).Info("A ResourceSlice of this node was deleted; publishing again")
			p.publishOrReport(ctx)
		}},
		// Only the names matter here; the helper's own informer holds the content.
		Transform: func(object any) (any, error) {
			if s, ok := object.(*resourceapi.ResourceSlice); ok {
				return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}}, nil
			}
			return object, nil
		},
	})
	informer.RunWithContext(ctx)
}
