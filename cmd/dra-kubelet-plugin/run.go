package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"tessera.dev/tessera/pkg/cdi"
	"tessera.dev/tessera/pkg/driver"
)

// conflictWait leaves most of the kubelet's 45 s to the work itself.
const conflictWait = 15 * time.Second

// run is the plugin's life: it returns when ctx ends (SIGTERM) or when something cannot go on.
func run(ctx context.Context, o *pluginOptions) error {
	logger := klog.FromContext(ctx)
	if err := os.MkdirAll(o.dataDir(), 0o750); err != nil {
		return fmt.Errorf("make the plugin's data directory: %w", err)
	}
	if o.simDir == "" {
		o.simDir = filepath.Join(o.dataDir(), "sim")
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	access, err := o.access()
	if err != nil {
		return err
	}
	hardware, err := o.open(ctx, access)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.callTimeout)
		defer cancel()
		if err := hardware.Close(closing); err != nil {
			logger.Error(err, "NVML could not be closed")
		}
	}()
	hook, err := installHook(o.cdiHook, filepath.Join(o.dataDir(), "bin"))
	if err != nil {
		return err
	}
	specs, err := cdi.New(cdi.Options{
		Dir:              o.cdiDir,
		Vendor:           driverName,
		Library:          hardware.Library(),
		DriverRoot:       access.driverRoot,
		DriverRootOnHost: access.driverRootOnHost,
		DevRoot:          access.devRoot,
		HookPath:         hook,
		Log:              klog.LoggerWithName(logger, "cdi"),
	})
	if err != nil {
		return err
	}
	bootID, err := readBootID()
	if err != nil {
		return err
	}
	reporter, stopEvents := newReporter(client, o.nodeName)
	defer stopEvents()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	plugin, err := driver.New(ctx, driver.Config{
		DriverName:        driverName,
		NodeName:          o.nodeName,
		PodUID:            types.UID(o.podUID),
		DataDir:           o.dataDir(),
		RegistryDir:       o.kubeletRegistryDir,
		BootID:            bootID,
		DiscoveryInterval: o.discoveryInterval,
		ReconcileInterval: o.reconcileInterval,
		ConflictWait:      conflictWait,
	}, hardware, specs, driver.NewClaims(client), reporter, driver.NewMetrics(registry))
	if err != nil {
		return err
	}
	return serve(ctx, o, plugin, client, registry)
}

// serve runs the plugin and its two servers; the first that ends ends all.
func serve(ctx context.Context, o *pluginOptions, plugin *driver.Driver, client kubernetes.Interface, registry *prometheus.Registry) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	start := func(what string, work func() error) {
		group.Go(func() {
			defer cancel()
			if err := work(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	if o.healthAddress != "" {
		listener, err := net.Listen("tcp", o.healthAddress)
		if err != nil {
			return fmt.Errorf("--health-bind-address: %w", err)
		}
		start("health server", func() error { return plugin.ServeHealth(ctx, listener) })
	}
	if o.metricsAddress != "" {
		listener, err := net.Listen("tcp", o.metricsAddress)
		if err != nil {
			cancel()
			group.Wait()
			return fmt.Errorf("--metrics-bind-address: %w", err)
		}
		start("metrics server", func() error { return serveMetrics(ctx, listener, registry) })
	}
	start("kubelet plugin", func() error { return plugin.Run(ctx, client) })
	group.Wait()
	return errors.Join(errs...)
}

func serveMetrics(ctx context.Context, listener net.Listener, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newReporter sends events on the node; stop flushes nothing but ends the sender.
func newReporter(client kubernetes.Interface, nodeName string) (driver.Reporter, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "tessera-kubelet-plugin", Host: nodeName})
	return driver.NewNodeReporter(recorder, nodeName), broadcaster.Shutdown
}

// installHook copies the CDI hook to where the container runtime can run it: the host does not have this image's files.
// It returns the path on the host.
func installHook(source, dir string) (string, error) {
	content, err := os.ReadFile(source)
	if err != nil {
		return "", fmt.Errorf("--cdi-hook: %w", err)
	}
	target := filepath.Join(dir, "nvidia-cdi-hook")
	if existing, err := os.ReadFile(target); err == nil && string(existing) == string(content) {
		return target, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("install the CDI hook: %w", err)
	}
	// A new file and a rename: containers that are starting may be running the old one.
	temporary, err := os.CreateTemp(dir, ".nvidia-cdi-hook-*")
	if err != nil {
		return "", fmt.Errorf("install the CDI hook: %w", err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(content)
	err = errors.Join(err, temporary.Chmod(0o755), temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), target)
	}
	if err != nil {
		return "", fmt.Errorf("install the CDI hook as %s: %w", target, err)
	}
	return target, nil
}

func readBootID() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read this boot's id: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}
