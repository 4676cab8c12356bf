// Package inventory turns the facts about a machine into the DRA devices and slices that its node publishes.
//
// It is pure and deterministic: the same facts give byte-identical slices, in whatever order the GPUs come, and a GPU that is lost
// changes no other GPU's device. All slices keep the limits of the resource.k8s.io/v1 API.
package inventory
