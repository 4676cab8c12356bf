//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	driverName      = "gpu.tessera.dev"
	gpuClass        = "gpu.tessera.dev"
	monitorClass    = "monitor.tessera.dev"
	driverNamespace = "tessera"
	daemonSet       = "tessera-kubelet-plugin"
	serviceAccount  = "tessera-kubelet-plugin"
	pluginLabels    = "app.kubernetes.io/name=tessera,app.kubernetes.io/component=kubelet-plugin"
	journalDir      = "/var/lib/kubelet/plugins/gpu.tessera.dev/journal"

	attributePCIeRoot = "resource.kubernetes.io/pcieRoot"
	attributeNUMANode = "resource.kubernetes.io/numaNode"
)

// cluster is the cluster under test.
type cluster struct {
	config *rest.Config
	kubernetes.Interface
}

// connect uses the kubeconfig that KUBECONFIG names.
func connect() (*cluster, error) {
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		return nil, errors.New("KUBECONFIG is not set; bring a cluster up first: go run ./test/cluster up, then eval \"$(go run ./test/cluster env)\"")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read KUBECONFIG: %w", err)
	}
	config.QPS, config.Burst = 100, 200
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client from KUBECONFIG: %w", err)
	}
	return &cluster{config: config, Interface: client}, nil
}

func (c *cluster) pods(namespace string) source {
	return source{getter: c.CoreV1().RESTClient(), resource: "pods", namespace: namespace}
}

func (c *cluster) plugins() source {
	from := c.pods(driverNamespace)
	from.label = pluginLabels
	return from
}

func (c *cluster) claims(namespace string) source {
	return source{getter: c.ResourceV1().RESTClient(), resource: "resourceclaims", namespace: namespace}
}

func (c *cluster) slices(node string) source {
	from := source{getter: c.ResourceV1().RESTClient(), resource: "resourceslices", field: resourceapi.ResourceSliceSelectorDriver + "=" + driverName}
	if node != "" {
		from.field += "," + resourceapi.ResourceSliceSelectorNodeName + "=" + node
	}
	return from
}

// ready waits until the plugin runs on every node where it should and has published there.
func (c *cluster) ready(ctx context.Context) error {
	from := source{getter: c.AppsV1().RESTClient(), resource: "daemonsets", namespace: driverNamespace}.named(daemonSet)
	err := until(ctx, from, "the DaemonSet to be rolled out", func(sets []*appsv1.DaemonSet) error {
		if len(sets) == 0 {
			return errors.New("there is no DaemonSet")
		}
		set := sets[0]
		status := set.Status
		desired := status.DesiredNumberScheduled
		if status.ObservedGeneration < set.Generation || desired == 0 || status.UpdatedNumberScheduled != desired || status.NumberAvailable != desired {
			return fmt.Errorf("generation %d, seen %d, status %+v", set.Generation, status.ObservedGeneration, status)
		}
		return nil
	})
	if err != nil {
		return err
	}
	set, err := c.AppsV1().DaemonSets(driverNamespace).Get(ctx, daemonSet, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the DaemonSet: %w", err)
	}
	desired := int(set.Status.DesiredNumberScheduled)
	var nodes []string
	err = until(ctx, c.plugins(), "the plugin's old pods to end", func(pods []*corev1.Pod) error {
		nodes = nil
		for _, pod := range pods {
			nodes = append(nodes, pod.Spec.NodeName)
		}
		if len(pods) != desired {
			return fmt.Errorf("%d pods, want %d", len(pods), desired)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if _, err := c.published(ctx, node, nil); err != nil {
			return err
		}
	}
	return nil
}

// published waits until the node's pool is complete and has none of the old slices, and returns it, sorted by name.
func (c *cluster) published(ctx context.Context, node string, old []*resourceapi.ResourceSlice) ([]*resourceapi.ResourceSlice, error) {
	return c.publishedAs(ctx, node, func(pool []*resourceapi.ResourceSlice) error {
		for _, slice := range pool {
			if slices.ContainsFunc(old, func(o *resourceapi.ResourceSlice) bool { return o.UID == slice.UID }) {
				return fmt.Errorf("slice %s is an old one", slice.Name)
			}
		}
		return nil
	})
}

// publishedAs waits until the node's pool is complete and check accepts it, and returns it, sorted by name.
func (c *cluster) publishedAs(ctx context.Context, node string, check func([]*resourceapi.ResourceSlice) error) ([]*resourceapi.ResourceSlice, error) {
	var pool []*resourceapi.ResourceSlice
	err := until(ctx, c.slices(node), "the ResourceSlices of node "+node, func(found []*resourceapi.ResourceSlice) error {
		pool = slices.SortedFunc(slices.Values(found), func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
		devices := 0
		for _, slice := range pool {
			if int64(len(pool)) != slice.Spec.Pool.ResourceSliceCount || slice.Spec.Pool.Generation != pool[0].Spec.Pool.Generation {
				return fmt.Errorf("slice %s says that its pool has %d slices; %d are there", slice.Name, slice.Spec.Pool.ResourceSliceCount, len(pool))
			}
			devices += len(slice.Spec.Devices)
		}
		if devices == 0 {
			return errors.New("there are no devices")
		}
		return check(pool)
	})
	return pool, err
}

// device is a published device.
type device struct {
	pool, name string
	resourceapi.Device
}

func (d device) text(attribute string) string {
	value := d.Attributes[resourceapi.QualifiedName(attribute)]
	switch {
	case value.StringValue != nil:
		return *value.StringValue
	case value.VersionValue != nil:
		return *value.VersionValue
	case value.IntValue != nil:
		return fmt.Sprint(*value.IntValue)
	default:
		return ""
	}
}

// gpus returns the whole GPUs of a node, or of all nodes, sorted by pool and name.
func (c *cluster) gpus(ctx context.Context, node string) ([]device, error) {
	options := metav1.ListOptions{FieldSelector: c.slices(node).field}
	list, err := c.ResourceV1().ResourceSlices().List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list the driver's ResourceSlices: %w", err)
	}
	var gpus []device
	for _, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			if found := (device{pool: slice.Spec.Pool.Name, name: d.Name, Device: d}); found.text("type") == "gpu" {
				gpus = append(gpus, found)
			}
		}
	}
	slices.SortFunc(gpus, func(a, b device) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.name, b.name))
	})
	return gpus, nil
}

// gpuNodes returns the nodes with published GPUs on which ordinary pods may run, sorted.
func (c *cluster) gpuNodes(ctx context.Context) ([]string, error) {
	gpus, err := c.gpus(ctx, "")
	if err != nil {
		return nil, err
	}
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var names []string
	for _, node := range nodes.Items {
		open := !node.Spec.Unschedulable && !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Effect != corev1.TaintEffectPreferNoSchedule
		})
		if open && slices.ContainsFunc(gpus, func(d device) bool { return d.pool == node.Name }) {
			names = append(names, node.Name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no node has both published GPUs and room for ordinary pods")
	}
	return sorted(names), nil
}
