package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"tessera.dev/tessera/pkg/inventory"
	"tessera.dev/tessera/pkg/topology"
)

// allocated is one of our devices in a claim's allocation, resolved to the GPU behind it.
type allocated struct {
	request string
	pool    string
	device  string
	shareID *types.UID
	admin   bool
	kind    inventory.Kind
	gpu     topology.GPU
}

// exclusive says whether the device may belong to one claim only. Admin access takes nothing away from anybody.
func (a allocated) exclusive() bool { return !a.admin }

// resolve returns this node's devices in the claim's allocation, in the allocation's order. Results of other drivers
// are not looked at. The error names every device that cannot be prepared and why.
func resolve(claim *resourceapi.ResourceClaim, driverName, poolName string, machine topology.Machine) ([]allocated, error) {
	if claim.Status.Allocation == nil {
		return nil, errors.New("the claim is not allocated; the scheduler allocates it when a pod uses it")
	}
	var (
		devices []allocated
		errs    []error
	)
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driverName {
			continue
		}
		device, err := resolveResult(claim, result, poolName, machine)
		if err != nil {
			errs = append(errs, fmt.Errorf("request %q, device %s/%s: %w", result.Request, result.Pool, result.Device, err))
			continue
		}
		devices = append(devices, device)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return devices, checkDuplicates(devices)
}

func resolveResult(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult, poolName string, machine topology.Machine) (allocated, error) {
	if result.Pool != poolName {
		return allocated{}, fmt.Errorf("the pool belongs to another node, this node's pool is %q", poolName)
	}
	ref, err := inventory.ParseDeviceName(result.Device)
	if err != nil {
		return allocated{}, err
	}
	admin := result.AdminAccess != nil && *result.AdminAccess
	if ref.Kind == inventory.KindMonitor && !admin {
		return allocated{}, errors.New("a monitor device is for admins only: set adminAccess: true in the request, " +
			"in a namespace labelled resource.kubernetes.io/admin-access=true, or request the DeviceClass gpu.tessera.dev for a GPU of your own")
	}
	if err := checkConfig(claim, result); err != nil {
		return allocated{}, err
	}
	i := slices.IndexFunc(machine.GPUs, func(g topology.GPU) bool { return g.Minor == ref.Minor })
	if i < 0 {
		return allocated{}, fmt.Errorf("the GPU with minor number %d does not answer on this node any more; see the node's events and nvidia-smi", ref.Minor)
	}
	return allocated{
		request: result.Request,
		pool:    result.Pool,
		device:  result.Device,
		shareID: result.ShareID,
		admin:   admin,
		kind:    ref.Kind,
		gpu:     machine.GPUs[i],
	}, nil
}

// checkConfig refuses parameters: a whole GPU has none, and a setting that is silently ignored is worse than an error.
func checkConfig(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) error {
	for _, config := range resourceclaim.ConfigForResult(claim.Status.Allocation.Devices.Config, result) {
		if config.Opaque.Driver == result.Driver {
			return fmt.Errorf("opaque parameters from %s are not understood: a whole GPU takes none; remove the config for driver %s", config.Source, result.Driver)
		}
	}
	return nil
}

// checkDuplicates refuses an allocation that gives one GPU twice to one claim as exclusive.
func checkDuplicates(devices []allocated) error {
	seen := map[string]string{}
	for _, d := range devices {
		if !d.exclusive() {
			continue
		}
		if other, ok := seen[d.gpu.UUID]; ok {
			return fmt.Errorf("the allocation gives GPU %s to request %q and to request %q; delete the claim and let it be allocated again", d.gpu.UUID, other, d.request)
		}
		seen[d.gpu.UUID] = d.request
	}
	return nil
}

// gpuUUIDs returns the GPUs behind the devices in the order in which they are locked.
func gpuUUIDs(devices []allocated) []string {
	uuids := make([]string, 0, len(devices))
	for _, d := range devices {
		uuids = append(uuids, d.gpu.UUID)
	}
	return sortedSet(uuids)
}

// sortedSet sorts in place and drops duplicates.
func sortedSet(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}

// claimRef names a claim in errors and logs.
func claimRef(namespace, name, uid string) string {
	return strings.Join([]string{namespace, name}, "/") + " (" + uid + ")"
}
