// Package nvml reads the facts about a machine's GPUs from NVIDIA's management library (NVML) and from PCI sysfs.
//
// It holds one handle on the library for as long as the process lives and asks every question under a deadline: a GPU that hangs
// fails its own questions and nobody else's. A question that got no answer keeps its goroutine until NVML returns; until then the
// GPU is not asked again, the library is not initialised again, and Close says what is still out. Return codes of NVML are wrapped,
// so that errors.Is(err, gonvml.ERROR_GPU_IS_LOST) works on every error of this package.
package nvml
