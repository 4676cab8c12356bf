// Package e2e tests Tessera on a real cluster. The tests know a kubeconfig (KUBECONFIG) and, for the chart, the helm and
// kubectl programs on the PATH; they run on the project's own cluster (test/cluster) and on kind alike. They install the
// chart with simulated machines when it is not there yet, and remove it at the very end.
//
// They are behind the build tag "e2e":
//
//	go test -tags e2e -count 1 ./test/e2e
package e2e
