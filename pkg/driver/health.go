package driver

import (
	"context"
	"net"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Names of the gRPC health services for probes.
const (
	// HealthReadiness is serving when the kubelet has registered the plugin and its slices are published.
	HealthReadiness = ""
	// HealthLiveness is serving when the plugin answers on its DRA socket.
	HealthLiveness = "liveness"
)

// healthState is what the probes ask about.
type healthState struct {
	mu          sync.Mutex
	helper      *kubeletplugin.Helper
	isPublished bool
}

func (h *healthState) started(helper *kubeletplugin.Helper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.helper = helper
}

func (h *healthState) published() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isPublished = true
}

func (h *healthState) stopped() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.helper, h.isPublished = nil, false
}

func (h *healthState) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.helper == nil || !h.isPublished {
		return false
	}
	registration := h.helper.RegistrationStatus()
	return registration != nil && registration.PluginRegistered
}

// healthServer answers the kubelet's gRPC probes.
type healthServer struct {
	healthpb.UnimplementedHealthServer
	driver *Driver
}

func (s *healthServer) Check(ctx context.Context, request *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	var serving bool
	switch request.GetService() {
	case HealthReadiness:
		serving = s.driver.health.ready()
	case HealthLiveness:
		err := s.driver.askSelf(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "The plugin does not answer on its own socket")
		}
		serving = err == nil
	default:
		return nil, status.Errorf(codes.NotFound, "no health service %q; there are %q and %q", request.GetService(), HealthReadiness, HealthLiveness)
	}
	if serving {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
}

// askSelf sends an empty Prepare over the socket that the kubelet uses.
func (d *Driver) askSelf(ctx context.Context) error {
	socket := "dra.sock"
	if d.config.PodUID != "" {
		socket = "dra-" + string(d.config.PodUID) + ".sock"
	}
	connection, err := grpc.NewClient("unix://"+filepath.Join(d.config.DataDir, socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	_, err = drapb.NewDRAPluginClient(connection).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
	return err
}

// ServeHealth answers gRPC health checks on the listener until ctx ends.
func (d *Driver) ServeHealth(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, &healthServer{driver: d})
	stop := context.AfterFunc(ctx, server.GracefulStop)
	defer stop()
	return server.Serve(listener)
}
