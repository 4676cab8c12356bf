package driver

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// clusterClaims reads claims from the API server, not from a cache: the answer decides about releasing a GPU.
type clusterClaims struct{ client kubernetes.Interface }

// NewClaims looks claims up in the API server.
func NewClaims(client kubernetes.Interface) Claims { return clusterClaims{client} }

func (c clusterClaims) Get(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := c.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return claim, nil
}

// nodeReporter writes events on the Node.
type nodeReporter struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference
}

// NewNodeReporter returns a Reporter that writes events on the Node object.
func NewNodeReporter(recorder record.EventRecorder, nodeName string) Reporter {
	// The kubelet puts the node's name as the UID into its own events, and kubectl describe node looks for both.
	return nodeReporter{recorder: recorder, node: &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Node", Name: nodeName, UID: types.UID(nodeName),
	}}
}

func (r nodeReporter) Warn(reason, message string) {
	// The API server takes 1024 bytes.
	const limit = 1000
	if len(message) > limit {
		message = strings.ToValidUTF8(message[:limit], "") + "…"
	}
	r.recorder.Event(r.node, corev1.EventTypeWarning, reason, message)
}
