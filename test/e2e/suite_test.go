//go:build e2e

package e2e

import "testing"

// The tests run in the order of this file. Those that need a whole node or that end processes run one by one.

func TestChart(t *testing.T) {
	runParallel(t, []testCase{
		{"passes helm lint", chartLints},
		{"refuses wrong values and names them", chartRefusesWrongValues},
		{"renders objects that the API server accepts", chartValidates},
	})
}

func TestWholeNode(t *testing.T) {
	runInOrder(t, []testCase{
		{"pods get different GPUs, one too many waits and runs when another ends", podsGetDifferentGPUs},
		{"a claim for all GPUs of a node gets them", claimForWholeNode},
	})
}

func TestPods(t *testing.T) {
	runParallel(t, []testCase{
		{"a pod sees exactly the GPU that it was given", podSeesItsGPU},
		{"two containers that share a claim see the same GPU", containersShareClaim},
		{"two pods that share a claim see the same GPU", podsShareClaim},
		{"a pod with two claims sees both GPUs", podWithTwoClaims},
		{"a claim with several requests gets a GPU for each", claimWithSeveralRequests},
		{"selectors on product, memory and driver version find GPUs", selectorsFind},
		{"selectors that no GPU fulfils leave the pod unschedulable", selectorsExclude},
		{"matchAttribute numaNode gets the GPUs of one NUMA node", matchNUMANode},
		{"matchAttribute pcieRoot gets GPUs under one root, or none where no two share one", matchPCIeRoot},
		{"a device that is allocated twice is refused and both claims are named", doubleAllocation},
		{"admin access sees a tenant's GPU and its end disturbs nothing", adminAccess},
		{"a monitor without admin access is refused", monitorWithoutAdmin},
		{"a plugin's credentials are good for its own node's slices only", forgedSlices},
	})
}

func TestDisruption(t *testing.T) {
	runInOrder(t, []testCase{
		{"the plugin is killed", pluginKilled},
		{"the kubelet is killed", kubeletKilled},
		{"the DaemonSet is updated under a stream of pods", rollingUpdate},
		{"a journal record is truncated", recordTruncated},
		{"a GPU is lost when the plugin starts", gpuLostAtStart},
		{"a claim is deleted while the plugin is down", claimDeletedWithoutPlugin},
	})
}

// TestUninstall must stay the last: it removes the driver.
func TestUninstall(t *testing.T) {
	t.Run("nothing is left in the nodes' journals", journalsEmpty)
	t.Run("upgrade and uninstall leave nothing behind", upgradeAndUninstall)
}

type testCase struct {
	name string
	run  func(*testing.T)
}

func runInOrder(t *testing.T, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

func runParallel(t *testing.T, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}
