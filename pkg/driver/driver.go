package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/journal"
	"tessera.dev/tessera/pkg/nvml"
	"tessera.dev/tessera/pkg/topology"
)

// Hardware is what the driver asks of the GPUs; pkg/nvml has it.
type Hardware interface {
	// Discover reads all GPUs; those that could not be read are in the failures, and an error means that none could.
	Discover(ctx context.Context) (topology.Machine, []nvml.Failure, error)
	// CheckGPU returns an error when the GPU does not answer.
	CheckGPU(ctx context.Context, uuid string) error
}

// Specs makes GPUs known to container runtimes; pkg/cdi has it.
type Specs interface {
	// WriteBase describes all GPUs of the machine. GPUs that it leaves out are in the error.
	WriteBase(ctx context.Context, machine topology.Machine) (changed bool, err error)
	// EnsureGPU makes the description of one GPU again if it is missing.
	EnsureGPU(ctx context.Context, uuid string) error
	// DeviceID is the GPU's CDI name.
	DeviceID(uuid string) string
}

// Claims looks ResourceClaims up.
type Claims interface {
	// Get returns nil without an error when there is no such claim.
	Get(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
}

// Reporter tells people about trouble on this node. Each call becomes an event on the Node object.
type Reporter interface {
	Warn(reason, message string)
}

// Config is what the driver must know about its place.
type Config struct {
	DriverName string
	// NodeName is also the name of the pool.
	NodeName string
	// PodUID, when set, lets two plugins run beside each other during a rolling update.
	PodUID types.UID
	// DataDir holds the journal, the lock files and the DRA socket, for example /var/lib/kubelet/plugins/gpu.tessera.dev.
	DataDir string
	// RegistryDir is where the kubelet looks for plugins, for example /var/lib/kubelet/plugins_registry.
	RegistryDir string
	// BootID changes when the machine restarts, see /proc/sys/kernel/random/boot_id.
	BootID string
	// DiscoveryInterval is the time between two looks at the hardware.
	DiscoveryInterval time.Duration
	// ReconcileInterval is the time between two comparisons of journal, CDI and API server.
	ReconcileInterval time.Duration
	// ConflictWait is how long a Prepare waits for a device whose previous claim is just ending.
	ConflictWait time.Duration
}

// Driver implements kubeletplugin.DRAPlugin. Make one with New and start it with Run.
type Driver struct {
	config   Config
	hardware Hardware
	specs    Specs
	claims   Claims
	reporter Reporter
	metrics  *Metrics

	ledger     *ledger
	claimLocks *keyedLocks
	gpuLocks   *keyedLocks

	machine atomic.Pointer[topology.Machine]
	health  healthState
	stale   staleClaims
	calls   callGate
	// told remembers which troubles have been reported, so that an event is sent when one appears, not every time.
	told map[trouble]bool

	// fatal is called with the error that must end the process; Run sets it.
	fatal atomic.Pointer[context.CancelCauseFunc]
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// New opens the journal under config.DataDir and looks at the hardware once, so that Prepare can answer at once.
// Records that cannot be read are set aside and reported; they stop nothing.
func New(ctx context.Context, config Config, hardware Hardware, specs Specs, claims Claims, reporter Reporter, metrics *Metrics) (*Driver, error) {
	if err := os.MkdirAll(config.DataDir, 0o750); err != nil {
		return nil, fmt.Errorf("make the plugin's data directory: %w", err)
	}
	ledger, corrupt, err := openLedger(filepath.Join(config.DataDir, "journal"))
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	gpuLocks, err := newKeyedLocks(filepath.Join(config.DataDir, "locks"))
	if err != nil {
		return nil, err
	}
	claimLocks, err := newKeyedLocks("")
	if err != nil {
		return nil, err
	}
	d := &Driver{
		config:     config,
		hardware:   hardware,
		specs:      specs,
		claims:     claims,
		reporter:   reporter,
		metrics:    metrics,
		ledger:     ledger,
		claimLocks: claimLocks,
		gpuLocks:   gpuLocks,
		told:       map[trouble]bool{},
	}
	d.machine.Store(&topology.Machine{})
	d.reportCorrupt(ctx, corrupt)
	d.metrics.prepared.Set(float64(ledger.len()))
	d.discover(ctx)
	return d, nil
}

func (d *Driver) reportCorrupt(ctx context.Context, corrupt []journal.Corrupt) {
	for _, c := range corrupt {
		d.metrics.corrupt.Inc()
		klog.FromContext(ctx).Error(c.Err, "A journal record cannot be read and was set aside", "path", c.Path)
		d.reporter.Warn("JournalRecordCorrupt", fmt.Sprintf("A claim's record cannot be read and was set aside as %s: %v. "+
			"Other claims are not affected; delete the file when it has been looked at.", c.Path, c.Err))
	}
}

// Machine is what the last discovery saw.
func (d *Driver) Machine() topology.Machine { return *d.machine.Load() }

// Run registers with the kubelet, publishes, and keeps the node's state true until ctx ends. It returns when
// everything that it started has ended: nil after a requested stop, else the error that ended the plugin.
func (d *Driver) Run(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.fatal.Store(&cancel)

	// The helper outlives ctx: a call in flight is answered before the sockets close.
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), d, d.options(client)...)
	if err != nil {
		return fmt.Errorf("start the kubelet plugin: %w", err)
	}
	defer helper.Stop()
	defer d.calls.drain()
	d.health.started(helper)
	defer d.health.stopped()

	publisher := &publisher{driver: d, helper: helper}
	if err := publisher.publish(ctx); err != nil {
		return err
	}
	d.health.published()

	var group sync.WaitGroup
	group.Go(func() { every(ctx, d.config.DiscoveryInterval, func() { publisher.rediscover(ctx) }) })
	group.Go(func() { publisher.watchDeletions(ctx, client) })
	group.Go(func() { d.reconcileLoop(ctx) })
	<-ctx.Done()
	group.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func (d *Driver) options(client kubernetes.Interface) []kubeletplugin.Option {
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(d.config.DriverName),
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(d.config.NodeName),
		kubeletplugin.PluginDataDirectoryPath(d.config.DataDir),
		kubeletplugin.RegistrarDirectoryPath(d.config.RegistryDir),
		// The driver has a lock per GPU, so claims on different GPUs need not wait for each other.
		kubeletplugin.Serialize(false),
		kubeletplugin.HealthService(false),
	}
	if d.config.PodUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(d.config.PodUID))
	}
	return options
}

// WatchHealthStatus is not offered yet; the service is switched off in options.
func (d *Driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// HandleError takes errors of background work. One that cannot heal ends the process, so that the kubelet restarts it.
func (d *Driver) HandleError(ctx context.Context, err error, msg string) {
	utilruntime.HandleErrorWithContext(ctx, err, msg)
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		d.reporter.Warn("ResourceSliceFieldsDropped", fmt.Sprintf("The API server dropped fields of pool %s: switch on the feature gates %v.", dropped.PoolName, dropped.DisabledFeatures()))
	case errors.Is(err, kubeletplugin.ErrRecoverable):
		d.metrics.publishErrors.Inc()
	default:
		if cancel := d.fatal.Load(); cancel != nil {
			(*cancel)(fmt.Errorf("%s: %w", msg, err))
		}
	}
}

// callGate lets calls of the kubelet in until it is drained.
type callGate struct {
	mu       sync.RWMutex
	draining bool
}

var errStopping = errors.New("this plugin process is stopping; the kubelet asks the next one")

// enter returns the function that ends the call, or an error when the plugin is stopping.
func (g *callGate) enter() (leave func(), err error) {
	g.mu.RLock()
	if g.draining {
		g.mu.RUnlock()
		return nil, errStopping
	}
	return g.mu.RUnlock, nil
}

// drain waits for the calls that are in flight, each of which ends within callBudget, and lets no other in.
func (g *callGate) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining = true
}

// every calls work once per interval until ctx ends.
func every(ctx context.Context, interval time.Duration, work func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			work()
		}
	}
}
