package nvml

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sync/semaphore"
	"k8s.io/klog/v2"
)

const (
	defaultCallTimeout = 5 * time.Second
	// initFactor is how many times longer than any other call Init and Shutdown may take: without nvidia-persistenced, the driver
	// needs seconds for each GPU that it starts.
	initFactor = 12
)

// Options say which hardware to open.
type Options struct {
	// Library is NVML: the real one, or a simulated machine's.
	Library gonvml.Interface
	// SysfsRoot is the directory that holds bus/ and devices/. Empty means /sys.
	SysfsRoot string
	// CallTimeout is how long one call may take before its GPU counts as hung. Zero means 5 s. Init and Shutdown may take 12 times
	// as long.
	CallTimeout time.Duration
}

// Hardware is the machine's GPUs. It is safe for concurrent use.
type Hardware struct {
	library     gonvml.Interface
	sysfsRoot   string
	callTimeout time.Duration
	calls       calls

	// use is held once by everyone who asks and in full by whoever starts or ends the library, so that no handle outlives
	// the initialisation that it came from.
	use   *semaphore.Weighted
	state libraryState // read while holding use, written while holding use in full

	mu sync.Mutex
	// known is who was where, by index, when the GPUs were last read. NVML numbers the GPUs anew only when their count changes.
	known []gpuRef
}

type libraryState struct {
	ready, closed bool
	// generation counts the initialisations, so that two users who meet the same dead library start it once.
	generation int
}

var (
	errClosed   = errors.New("NVML is closed: the plugin is stopping")
	errNotReady = errors.New("NVML is not initialised")
	// errBusy means that the library cannot be started again because NVML still works on a call that it never answered.
	errBusy = errors.New("NVML cannot be initialised again before that call returns; if it never does, restart the pod or reboot the node")
)

// Open initialises the library. The error says what to do when there is no driver.
func Open(ctx context.Context, o Options) (*Hardware, error) {
	if o.Library == nil {
		return nil, errors.New("open NVML: no library given")
	}
	if o.CallTimeout < 0 {
		return nil, fmt.Errorf("open NVML: the call timeout %s is negative", o.CallTimeout)
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = defaultCallTimeout
	}
	if o.SysfsRoot == "" {
		o.SysfsRoot = "/sys"
	}
	h := &Hardware{
		library:     o.Library,
		sysfsRoot:   o.SysfsRoot,
		callTimeout: o.CallTimeout,
		use:         semaphore.NewWeighted(math.MaxInt64),
	}
	if err := h.initialise(ctx); err != nil {
		return nil, fmt.Errorf("open NVML: %w", err)
	}
	return h, nil
}

// Library is the one library of the process. Whoever calls it directly gives up the deadlines.
func (h *Hardware) Library() gonvml.Interface { return h.library }

// Close waits for the calls that are out and shuts the library down. When ctx ends first, the library stays loaded, because a call is
// still inside it, and the error names the call. Closing twice is no error.
func (h *Hardware) Close(ctx context.Context) error {
	if err := h.use.Acquire(ctx, math.MaxInt64); err != nil {
		return fmt.Errorf("close NVML: calls are still running: %w", err)
	}
	defer h.use.Release(math.MaxInt64)
	h.state.closed = true
	if err := h.calls.wait(ctx); err != nil {
		return fmt.Errorf("close NVML: %w", err)
	}
	if !h.state.ready {
		return nil
	}
	h.state.ready = false
	if err := h.shutdown(ctx); err != nil {
		return fmt.Errorf("close NVML: %w", err)
	}
	return nil
}

// acquire lets the caller ask until it calls release. It fails when the library is not initialised.
func (h *Hardware) acquire(ctx context.Context) (generation int, release func(), err error) {
	if err := h.use.Acquire(ctx, 1); err != nil {
		return 0, nil, fmt.Errorf("wait for NVML, which is being initialised: %w", err)
	}
	release = func() { h.use.Release(1) }
	switch {
	case h.state.closed:
		err = errClosed
	case !h.state.ready:
		err = errNotReady
	}
	if err != nil {
		generation = h.state.generation
		release()
		return generation, nil, err
	}
	return h.state.generation, release, nil
}

// reinitialise shuts the library down and starts it again, unless somebody did so since generation. cause is the answer that showed
// that it is needed.
func (h *Hardware) reinitialise(ctx context.Context, generation int, cause error) error {
	if err := h.use.Acquire(ctx, math.MaxInt64); err != nil {
		return fmt.Errorf("initialise NVML again: calls are still running: %w", err)
	}
	defer h.use.Release(math.MaxInt64)
	if h.state.closed {
		return errClosed
	}
	if h.state.generation != generation {
		return nil
	}
	if out := h.calls.oldest(); out != "" {
		// Shutting down would unload the library under that call's feet.
		return fmt.Errorf("%w; %s was never answered: %w", cause, out, errBusy)
	}
	klog.FromContext(ctx).Info("Initialising NVML again", "cause", cause.Error())
	if h.state.ready {
		h.state.ready = false
		if err := h.shutdown(ctx); err != nil {
			klog.FromContext(ctx).Info("NVML did not shut down cleanly", "err", err.Error())
		}
	}
	if err := h.initialise(ctx); err != nil {
		return fmt.Errorf("initialise NVML again: %w", err)
	}
	return nil
}

// initialise starts the library. The caller holds use in full, or is alone.
func (h *Hardware) initialise(ctx context.Context) error {
	_, err := ask(ctx, h, question[struct{}]{
		of:      wholeLibrary(),
		call:    "Init",
		timeout: initFactor * h.callTimeout,
		do:      func() (struct{}, gonvml.Return) { return struct{}{}, h.library.Init() },
		late: func(ret gonvml.Return) {
			if ret == gonvml.SUCCESS {
				h.library.Shutdown() // nobody waits for this initialisation any more
			}
		},
	})
	if err != nil {
		return err
	}
	h.state.ready = true
	h.state.generation++
	return nil
}

func (h *Hardware) shutdown(ctx context.Context) error {
	_, err := ask(ctx, h, question[struct{}]{
		of:      wholeLibrary(),
		call:    "Shutdown",
		timeout: initFactor * h.callTimeout,
		do:      func() (struct{}, gonvml.Return) { return struct{}{}, h.library.Shutdown() },
	})
	return err
}

// needsInit reports whether an answer means that the library lost its driver: after the driver was unloaded, loaded again or
// replaced, every call fails so until the library is initialised again.
func needsInit(err error) bool {
	for _, ret := range []gonvml.Return{
		gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED, gonvml.ERROR_LIB_RM_VERSION_MISMATCH,
	} {
		if errors.Is(err, ret) {
			return true
		}
	}
	return errors.Is(err, errNotReady)
}
