// Package driver is the kubelet plugin: it publishes this node's GPUs as ResourceSlices and prepares and unprepares
// the ResourceClaims that the kubelet hands over.
//
// What is true is written down in this order: the per-claim record in pkg/journal, then the answer to the kubelet.
// A whole GPU changes nothing on the hardware, so its claim is written once, when its container can start. Everything
// in memory is an index over the journal and is rebuilt at start; two plugin processes may run side by side during a
// rolling update, so a decision about a GPU is taken under a lock file and over the journal's current content.
package driver
