package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// driverName is the name in ResourceSlices, DeviceClasses and the kubelet's registry.
const driverName = "gpu.tessera.dev"

// hardwareOptions say which GPUs to look at.
type hardwareOptions struct {
	nodeName              string
	nvml                  string
	simDir                string
	simNvidiaSMI          string
	driverRoot            string
	driverRootInContainer string
	devRoot               string
	callTimeout           time.Duration
}

func (o *hardwareOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "Name of this node, and of its pool of devices. Default: $NODE_NAME.")
	flags.StringVar(&o.nvml, "nvml", "real", "Where GPUs come from: \"real\" for the NVIDIA driver of this machine, or \"sim:PROFILE\" for a simulated machine, PROFILE being a name such as dgx-h100 or a path to a YAML file.")
	flags.StringVar(&o.driverRoot, "driver-root", "/", "Root of the NVIDIA driver's installation on the host.")
	flags.StringVar(&o.driverRootInContainer, "driver-root-in-container", "", "Where this process sees the driver root. Default: the same path.")
	flags.StringVar(&o.devRoot, "dev-root", "", "Directory on the host that holds dev/ with the device nodes. Default: the driver root if it has dev/nvidiactl, else /.")
	flags.DurationVar(&o.callTimeout, "nvml-call-timeout", 5*time.Second, "How long one NVML call may take before its GPU counts as hung.")
}

// simProfile returns the simulated machine's profile, and false for real GPUs.
func (o *hardwareOptions) simProfile() (string, bool, error) {
	if o.nvml == "real" {
		return "", false, nil
	}
	profile, ok := strings.CutPrefix(o.nvml, "sim:")
	if !ok || profile == "" {
		return "", false, fmt.Errorf("--nvml=%s: use \"real\", or \"sim:PROFILE\" such as sim:dgx-h100", o.nvml)
	}
	return profile, true, nil
}

// pluginOptions are the flags of the plugin itself.
type pluginOptions struct {
	hardwareOptions

	podUID             string
	kubeletPluginsDir  string
	kubeletRegistryDir string
	cdiDir             string
	cdiHook            string
	kubeconfig         string
	kubeAPIQPS         float32
	kubeAPIBurst       int
	metricsAddress     string
	healthAddress      string
	discoveryInterval  time.Duration
	reconcileInterval  time.Duration
}

func (o *pluginOptions) addFlags(flags *pflag.FlagSet) {
	o.hardwareOptions.addFlags(flags)
	flags.StringVar(&o.simDir, "sim-dir", "", "Directory for a simulated machine's state and driver root. Default: sim/ in the plugin's data directory.")
	flags.StringVar(&o.simNvidiaSMI, "sim-nvidia-smi", "/usr/share/tessera/sim/nvidia-smi", "The nvidia-smi that a simulated driver root gets.")
	flags.StringVar(&o.podUID, "pod-uid", os.Getenv("POD_UID"), "UID of the plugin's pod; when set, two plugin pods may run beside each other during a rolling update. Default: $POD_UID.")
	flags.StringVar(&o.kubeletPluginsDir, "kubelet-plugins-dir", "/var/lib/kubelet/plugins", "The kubelet's directory for plugin data; the journal is kept in "+driverName+" below it.")
	flags.StringVar(&o.kubeletRegistryDir, "kubelet-registry-dir", "/var/lib/kubelet/plugins_registry", "The kubelet's directory for plugin registration sockets.")
	flags.StringVar(&o.cdiDir, "cdi-dir", "/var/run/cdi", "Directory for CDI specifications; the container runtime must read it.")
	flags.StringVar(&o.cdiHook, "cdi-hook", "/usr/bin/nvidia-cdi-hook", "The nvidia-cdi-hook binary; it is copied to the plugin's data directory, where the container runtime runs it.")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig. Default: the pod's ServiceAccount.")
	flags.Float32Var(&o.kubeAPIQPS, "kube-api-qps", 50, "Requests per second to the API server. Each claim's preparation takes one.")
	flags.IntVar(&o.kubeAPIBurst, "kube-api-burst", 100, "Requests to the API server that may come at once.")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":9440", "Address for Prometheus metrics at /metrics; empty for none.")
	flags.StringVar(&o.healthAddress, "health-bind-address", ":9441", "Address for gRPC health checks: service \"\" is readiness, \"liveness\" is liveness; empty for none.")
	flags.DurationVar(&o.discoveryInterval, "discovery-interval", 30*time.Second, "Time between two looks at the hardware.")
	flags.DurationVar(&o.reconcileInterval, "reconcile-interval", 5*time.Minute, "Time between two comparisons of the journal with the API server.")
}

func (o *pluginOptions) validate() error {
	var errs []error
	if o.nodeName == "" {
		errs = append(errs, errors.New("--node-name: set it, or $NODE_NAME, to the name of this node"))
	}
	if _, _, err := o.simProfile(); err != nil {
		errs = append(errs, err)
	}
	if o.kubeAPIQPS <= 0 || o.kubeAPIBurst <= 0 {
		errs = append(errs, errors.New("--kube-api-qps and --kube-api-burst: must be greater than 0"))
	}
	for flag, interval := range map[string]time.Duration{
		"--discovery-interval": o.discoveryInterval, "--reconcile-interval": o.reconcileInterval, "--nvml-call-timeout": o.callTimeout,
	} {
		if interval <= 0 {
			errs = append(errs, fmt.Errorf("%s=%v: must be greater than 0", flag, interval))
		}
	}
	return errors.Join(errs...)
}

// dataDir is the plugin's own directory below the kubelet's.
func (o *pluginOptions) dataDir() string { return filepath.Join(o.kubeletPluginsDir, driverName) }

func (o *pluginOptions) client() (kubernetes.Interface, error) {
	config, err := o.restConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = o.kubeAPIQPS, o.kubeAPIBurst
	config.UserAgent = "tessera-kubelet-plugin"
	return kubernetes.NewForConfig(config)
}

func (o *pluginOptions) restConfig() (*rest.Config, error) {
	if o.kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the API server: run in a pod, or pass --kubeconfig: %w", err)
		}
		return config, nil
	}
	return clientcmd.BuildConfigFromFlags("", o.kubeconfig)
}
