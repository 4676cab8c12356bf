package nvml

import (
	"context"
	"errors"
	"fmt"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// CheckGPU returns an error when the GPU with that UUID does not answer, each call having its deadline. It works with or without
// a Discover before; with one, it looks the GPU up by its place on the bus, because the look-up by UUID makes NVML touch other GPUs
// too, of which one may hang.
func (h *Hardware) CheckGPU(ctx context.Context, uuid string) error {
	if uuid == "" {
		return errors.New("check a GPU: its UUID is empty")
	}
	generation, err := h.check(ctx, uuid)
	if err == nil || !needsInit(err) {
		return err
	}
	if err := h.reinitialise(ctx, generation, err); err != nil {
		return err
	}
	_, err = h.check(ctx, uuid)
	return err
}

func (h *Hardware) check(ctx context.Context, uuid string) (generation int, err error) {
	generation, release, err := h.acquire(ctx)
	if err != nil {
		return generation, err
	}
	defer release()
	ref := h.find(uuid)
	device, err := h.handle(ctx, ref)
	if err != nil {
		return generation, err
	}
	found, err := query(ctx, h, ref, "GetUUID", device.GetUUID)
	if err != nil {
		return generation, err
	}
	if found != uuid {
		return generation, fmt.Errorf("%s: it is %s now, no more %s: the GPU was replaced; the next discovery will publish the new one", ref, found, uuid)
	}
	// NVML may know the UUID by heart; for this it has to ask the kernel.
	_, err = query(ctx, h, ref, "GetMemoryInfo", device.GetMemoryInfo)
	return generation, err
}

// find names the GPU by all that is known of it.
func (h *Hardware) find(uuid string) gpuRef {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ref := range h.known {
		if ref.uuid == uuid {
			return ref
		}
	}
	return gpuRef{index: -1, minor: -1, uuid: uuid}
}

func (h *Hardware) handle(ctx context.Context, ref gpuRef) (gonvml.Device, error) {
	if ref.busID == "" {
		return query(ctx, h, ref, "DeviceGetHandleByUUID", func() (gonvml.Device, gonvml.Return) {
			return h.library.DeviceGetHandleByUUID(ref.uuid)
		})
	}
	return query(ctx, h, ref, "DeviceGetHandleByPciBusId", func() (gonvml.Device, gonvml.Return) {
		return h.library.DeviceGetHandleByPciBusId(strings.ToUpper(ref.busID))
	})
}
