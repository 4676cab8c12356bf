//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func chartLints(t *testing.T) {
	if _, err := run(t.Context(), nil, "helm", chartArgs("lint", "--strict", chartDir)...); err != nil {
		t.Error(err)
	}
}

func chartRefusesWrongValues(t *testing.T) {
	cases := []struct{ value, names string }{
		{"image.pullPolicy=Sometimes", "pullPolicy"},
		{"simulation.enabled=perhaps", "enabled"},
		{"noSuchValue=1", "noSuchValue"},
		{"simulation.nodes=all", "nodes"},
	}
	for _, c := range cases {
		_, err := run(t.Context(), nil, "helm", append(chartArgs("template", "tessera", chartDir), "--set", c.value)...)
		if err == nil || !strings.Contains(err.Error(), c.names) || !strings.Contains(err.Error(), "schema") {
			t.Errorf("helm template --set %s: want an error of the schema that names %s, got %v", c.value, c.names, err)
		}
	}
}

func chartValidates(t *testing.T) {
	rendered, err := run(t.Context(), nil, "helm", chartArgs("template", "tessera", chartDir)...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(t.Context(), []byte(rendered), "kubectl", "apply", "--server-side", "--force-conflicts",
		"--dry-run=server", "--validate=strict", "--namespace", driverNamespace, "-f", "-")
	if err != nil {
		t.Error(err)
	}
}

// as returns a client with the credentials of the driver's ServiceAccount, as the pod has them, or of no pod if it is nil.
func (s *scene) as(pod *corev1.Pod) kubernetes.Interface {
	s.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	token, err := s.CoreV1().ServiceAccounts(driverNamespace).CreateToken(s.Context(), serviceAccount, request, metav1.CreateOptions{})
	s.must(err)
	config := rest.AnonymousClientConfig(s.config)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	return client
}

func forgedSlices(t *testing.T) {
	s := newScene(t)
	own, other := s.nodes[0], "no-such-node"
	if len(s.nodes) > 1 {
		other = s.nodes[1]
	}
	plugin := s.as(s.plugin(own))
	nobody := s.as(nil)
	dryRun := []string{metav1.DryRunAll}
	create := func(client kubernetes.Interface, node string) error {
		slice := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "forged-"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:   driverName,
				NodeName: &node,
				Pool:     resourceapi.ResourcePool{Name: node, Generation: 1000, ResourceSliceCount: 1},
			},
		}
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	update := func(client kubernetes.Interface, node string) error {
		pool, err := s.published(t.Context(), node, nil)
		s.must(err)
		_, err = client.ResourceV1().ResourceSlices().Update(t.Context(), pool[0], metav1.UpdateOptions{DryRun: dryRun})
		return err
	}
	remove := func(client kubernetes.Interface, node string) error {
		pool, err := s.published(t.Context(), node, nil)
		s.must(err)
		return client.ResourceV1().ResourceSlices().Delete(t.Context(), pool[0].Name, metav1.DeleteOptions{DryRun: dryRun})
	}

	for name, do := range map[string]func(kubernetes.Interface, string) error{"create": create, "update": update, "delete": remove} {
		if err := do(plugin, own); err != nil {
			t.Errorf("The plugin of node %s may not %s its own node's slices: %v", own, name, err)
		}
		if err := do(nobody, own); !refusedByPolicy(err) {
			t.Errorf("Credentials of no node: %s a slice of node %s: want a refusal by the admission policy, got %v", name, own, err)
		}
		if name != "create" && len(s.nodes) < 2 {
			continue
		}
		if err := do(plugin, other); !refusedByPolicy(err) {
			t.Errorf("The plugin of node %s: %s a slice of node %s: want a refusal by the admission policy, got %v", own, name, other, err)
		}
	}
}

func refusedByPolicy(err error) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

func upgradeAndUninstall(t *testing.T) {
	c, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t.Context(), c); left == nil {
		t.Fatal("The chart's objects cannot be found while it is installed, so that nothing would show whether they go")
	}
	_, err = run(t.Context(), nil, "helm", chartArgs("upgrade", "tessera", chartDir, "--set", "logging.verbosity=4")...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), nil, "helm", "uninstall", "tessera", "--namespace", driverNamespace, "--wait"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := until(t.Context(), c.slices(""), "the driver's ResourceSlices to go", none[*resourceapi.ResourceSlice]); err != nil {
		t.Error(err)
	}
	took := time.Since(start).Round(time.Second)
	t.Logf("The slices were gone %s after the uninstall", took)
	if took > time.Minute {
		t.Errorf("The slices were gone only %s after the uninstall, want at most 1m", took)
	}
	if err := until(t.Context(), c.plugins(), "the plugin's pods to go", none[*corev1.Pod]); err != nil {
		t.Error(err)
	}
	if left := leftovers(t.Context(), c); left != nil {
		t.Error(left)
	}
}

// leftovers returns an error that names the objects of the chart that exist, slices and pods apart.
func leftovers(ctx context.Context, c *cluster) error {
	var left []error
	found := func(kind string, names []string, err error) {
		if err != nil {
			left = append(left, fmt.Errorf("list %s: %w", kind, err))
		}
		for _, name := range names {
			if strings.Contains(name, "tessera") {
				left = append(left, fmt.Errorf("%s %s is left", kind, name))
			}
		}
	}
	list := metav1.ListOptions{}
	classes, err := c.ResourceV1().DeviceClasses().List(ctx, list)
	found("DeviceClass", names(classes.Items), err)
	roles, err := c.RbacV1().ClusterRoles().List(ctx, list)
	found("ClusterRole", names(roles.Items), err)
	bindings, err := c.RbacV1().ClusterRoleBindings().List(ctx, list)
	found("ClusterRoleBinding", names(bindings.Items), err)
	policies, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, list)
	found("ValidatingAdmissionPolicy", names(policies.Items), err)
	policyBindings, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(ctx, list)
	found("ValidatingAdmissionPolicyBinding", names(policyBindings.Items), err)
	sets, err := c.AppsV1().DaemonSets(driverNamespace).List(ctx, list)
	found("DaemonSet", names(sets.Items), err)
	accounts, err := c.CoreV1().ServiceAccounts(driverNamespace).List(ctx, list)
	found("ServiceAccount", names(accounts.Items), err)
	roleList, err := c.RbacV1().Roles(driverNamespace).List(ctx, list)
	found("Role", names(roleList.Items), err)
	roleBindings, err := c.RbacV1().RoleBindings(driverNamespace).List(ctx, list)
	found("RoleBinding", names(roleBindings.Items), err)
	configs, err := c.CoreV1().ConfigMaps(driverNamespace).List(ctx, list)
	found("ConfigMap", names(configs.Items), err)
	services, err := c.CoreV1().Services(driverNamespace).List(ctx, list)
	found("Service", names(services.Items), err)
	return errors.Join(left...)
}

func names[T any, P interface {
	*T
	metav1.Object
}](items []T) []string {
	var all []string
	for i := range items {
		all = append(all, P(&items[i]).GetName())
	}
	return all
}
