package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/journal"
)

// callBudget is what one Prepare or Unprepare may take. The kubelet gives up after 45 s and asks again only 60 to 90 s
// later, so the answer must leave before that.
const callBudget = 40 * time.Second

// PrepareResourceClaims makes this node's devices of the claims usable for containers. It is idempotent, claims on
// different GPUs proceed in parallel, and every claim has an entry in the result, also when the deadline strikes.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	leave, err := d.calls.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, callBudget, errBudget)
	defer cancel()
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	forEach(claims, func(claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
		ref := claimRef(claim.Namespace, claim.Name, string(claim.UID))
		logger := klog.LoggerWithValues(klog.FromContext(ctx), "claim", ref)
		done := d.metrics.observe("prepare")
		devices, err := d.prepareClaim(klog.NewContext(ctx, logger), claim)
		done(err)
		if err != nil {
			logger.Error(err, "Prepare failed")
			return kubeletplugin.PrepareResult{Err: fmt.Errorf("prepare claim %s: %w", ref, err)}
		}
		logger.V(2).Info("Prepared", "devices", len(devices))
		return kubeletplugin.PrepareResult{Devices: devices}
	}, func(claim *resourceapi.ResourceClaim, result kubeletplugin.PrepareResult) {
		results[claim.UID] = result
	})
	d.metrics.prepared.Set(float64(d.ledger.len()))
	return results, nil
}

// forEach runs work for all items at once, waits for all of them, and hands the results to collect one by one.
func forEach[T, R any](items []T, work func(T) R, collect func(T, R)) {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
	)
	for _, item := range items {
		group.Go(func() {
			result := work(item)
			mu.Lock()
			defer mu.Unlock()
			collect(item, result)
		})
	}
	group.Wait()
}

var errBudget = errors.New("the time for one kubelet call is used up; the kubelet asks again in 60 to 90 s")

// prepareClaim checks, makes sure that the CDI devices exist, and writes the record; nothing is left when it fails.
func (d *Driver) prepareClaim(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	devices, err := resolve(claim, d.config.DriverName, d.config.NodeName, d.Machine())
	if err != nil {
		return nil, err
	}
	release, err := d.claimLocks.acquire(ctx, string(claim.UID))
	if err != nil {
		return nil, err
	}
	defer release()

	record := d.newRecord(claim, devices)
	if err := d.hold(ctx, record, devices); err != nil {
		return nil, err
	}
	return answer(record), nil
}

// hold takes the GPUs for the claim: it waits for those whose previous claim is just ending, and refuses those that
// another live claim holds.
func (d *Driver) hold(ctx context.Context, record journal.Record, devices []allocated) error {
	waitUntil, cancel := context.WithTimeoutCause(ctx, d.config.ConflictWait, errConflictWait)
	defer cancel()
	for {
		conflict, err := d.tryHold(ctx, record, devices)
		if conflict == nil || err != nil {
			return err
		}
		ending, err := d.isEnding(ctx, conflict.holder)
		if err != nil || !ending {
			return errors.Join(conflict.describe(record), err)
		}
		klog.FromContext(ctx).Info("Waiting for the GPU's previous claim to end", "gpu", conflict.gpuUUID, "holder", recordRef(conflict.holder))
		select {
		case <-conflict.released:
		case <-waitUntil.Done():
			return fmt.Errorf("%w: %w", conflict.describe(record), context.Cause(waitUntil))
		}
	}
}

var errConflictWait = errors.New("the other claim is gone from the API server but its containers have not been reported as ended; " +
	"the kubelet retries, and the plugin releases it by itself if the kubelet never does")

// conflict is a GPU that another claim's record holds.
type conflict struct {
	gpuUUID  string
	device   string
	holder   journal.Record
	released <-chan struct{}
}

func (c *conflict) describe(record journal.Record) error {
	return fmt.Errorf("device %s (GPU %s) is allocated to claim %s but is in use by claim %s; "+
		"one device must not be allocated twice: delete the pod and claim that should not have it",
		c.device, c.gpuUUID, recordRef(record), recordRef(c.holder))
}

// tryHold does the work under the GPUs' locks. A conflict is returned without an error, because it may pass.
func (d *Driver) tryHold(ctx context.Context, record journal.Record, devices []allocated) (*conflict, error) {
	uuids := gpuUUIDs(devices)
	release, err := d.gpuLocks.acquire(ctx, uuids...)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := d.ledger.refresh(); err != nil {
		return nil, err
	}
	for _, device := range devices {
		if !device.exclusive() {
			continue
		}
		if holder, found, released := d.ledger.holder(device.gpu.UUID, record.UID); found {
			return &conflict{gpuUUID: device.gpu.UUID, device: device.device, holder: holder, released: released}, nil
		}
	}
	for _, uuid := range uuids {
		if err := d.hardware.CheckGPU(ctx, uuid); err != nil {
			return nil, err
		}
		// Also for a claim that is prepared already: the CDI directory is empty after a reboot.
		if err := d.specs.EnsureGPU(ctx, uuid); err != nil {
			return nil, err
		}
	}
	if existing, ok := d.ledger.get(record.UID); ok && sameRecord(existing, record) {
		return nil, nil
	}
	return nil, d.ledger.put(record)
}

// isEnding says whether the record's claim has no right to its devices any more: it is gone, was made again under the
// same name, or its allocation was taken back.
func (d *Driver) isEnding(ctx context.Context, record journal.Record) (bool, error) {
	claim, err := d.claims.Get(ctx, record.Namespace, record.Name)
	if err != nil {
		return false, fmt.Errorf("look up claim %s: %w", recordRef(record), err)
	}
	if claim == nil || string(claim.UID) != record.UID || claim.Status.Allocation == nil {
		return true, nil
	}
	held := make(map[string]bool, len(record.Devices))
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == d.config.DriverName && result.Pool == d.config.NodeName {
			held[result.Device] = true
		}
	}
	return !slices.ContainsFunc(record.Devices, func(device journal.Device) bool { return held[device.Device] }), nil
}

func (d *Driver) newRecord(claim *resourceapi.ResourceClaim, devices []allocated) journal.Record {
	record := journal.Record{
		Namespace: claim.Namespace,
		Name:      claim.Name,
		UID:       string(claim.UID),
		State:     journal.StatePrepared,
		BootID:    d.config.BootID,
	}
	for _, device := range devices {
		entry := journal.Device{
			Request:      device.request,
			Pool:         device.pool,
			Device:       device.device,
			GPUUUID:      device.gpu.UUID,
			Admin:        device.admin,
			CDIDeviceIDs: []string{d.specs.DeviceID(device.gpu.UUID)},
		}
		if device.shareID != nil {
			entry.ShareID = string(*device.shareID)
		}
		record.Devices = append(record.Devices, entry)
	}
	return record
}

func sameRecord(a, b journal.Record) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.State == b.State && a.BootID == b.BootID &&
		slices.EqualFunc(a.Devices, b.Devices, func(a, b journal.Device) bool {
			return a.Request == b.Request && a.Pool == b.Pool && a.Device == b.Device && a.GPUUUID == b.GPUUUID &&
				a.Admin == b.Admin && a.ShareID == b.ShareID && slices.Equal(a.CDIDeviceIDs, b.CDIDeviceIDs)
		})
}

func recordRef(record journal.Record) string {
	return claimRef(record.Namespace, record.Name, record.UID)
}

// answer is what the kubelet is told about a prepared claim.
func answer(record journal.Record) []kubeletplugin.Device {
	devices := make([]kubeletplugin.Device, 0, len(record.Devices))
	for _, device := range record.Devices {
		entry := kubeletplugin.Device{
			Requests:     []string{device.Request},
			PoolName:     device.Pool,
			DeviceName:   device.Device,
			CDIDeviceIDs: device.CDIDeviceIDs,
		}
		if device.ShareID != "" {
			shareID := types.UID(device.ShareID)
			entry.ShareID = &shareID
		}
		devices = append(devices, entry)
	}
	return devices
}
