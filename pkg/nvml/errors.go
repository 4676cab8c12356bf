package nvml

import (
	"errors"
	"fmt"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ErrHung is in every error that comes from a call that NVML did not answer before the deadline.
var ErrHung = errors.New("a call of NVML did not return")

// Failure is a GPU that could not be read.
type Failure struct {
	// Index is NVML's, or -1 when the failure is not about one GPU.
	Index int
	// Minor is the N of /dev/nvidiaN, or -1 when the GPU did not come so far.
	Minor int
	// UUID and BusID (for example "0000:1b:00.0") are empty when the GPU did not come so far.
	UUID, BusID string
	// Call is the NVML call that failed, for example "GetUUID", or "" when the answers contradict each other.
	Call string
	// Err names the GPU and the call, and says what to do.
	Err error
}

type hungError struct {
	of    gpuRef
	call  string
	after time.Duration
}

func (e *hungError) Error() string {
	culprit := "the GPU"
	if e.of == wholeLibrary() {
		culprit = "the driver or one of its GPUs"
	}
	return fmt.Sprintf("%s: %s did not answer within %s: %s may be hung; see nvidia-smi and dmesg, a reset or reboot may be needed",
		e.of, e.call, e.after, culprit)
}

func (e *hungError) Is(target error) bool { return target == ErrHung }

// callError is an NVML return code with the GPU and the call that it is about.
type callError struct {
	of   gpuRef
	call string
	ret  gonvml.Return
}

func (e *callError) Error() string {
	return fmt.Sprintf("%s: %s: %v (%s)", e.of, e.call, e.ret, advice(e.ret))
}

func (e *callError) Unwrap() error { return e.ret }

func returnError(of gpuRef, call string, ret gonvml.Return) error {
	if ret == gonvml.SUCCESS {
		return nil
	}
	return &callError{of: of, call: call, ret: ret}
}

// advice says what a user does about a return code.
func advice(ret gonvml.Return) string {
	switch ret {
	case gonvml.ERROR_GPU_IS_LOST:
		return "the GPU has fallen off the bus; see dmesg for Xid 79, a reset or reboot is needed"
	case gonvml.ERROR_RESET_REQUIRED:
		return "stop what uses the GPU and reset it with nvidia-smi --gpu-reset"
	case gonvml.ERROR_LIBRARY_NOT_FOUND:
		return "libnvidia-ml.so.1 is not there; install the NVIDIA driver or set --driver-root to its place"
	case gonvml.ERROR_FUNCTION_NOT_FOUND:
		return "the installed driver is too old for this call; upgrade it"
	case gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA kernel module is not loaded; see lsmod and dmesg, then load it with modprobe nvidia"
	case gonvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the driver's library and its kernel module have different versions; reload the module or reboot"
	case gonvml.ERROR_NO_PERMISSION:
		return "the process may not open /dev/nvidia*; run it privileged"
	case gonvml.ERROR_IRQ_ISSUE:
		return "the GPU gets no interrupts; see dmesg and the power cables"
	case gonvml.ERROR_INSUFFICIENT_POWER:
		return "check the GPU's power cables"
	case gonvml.ERROR_NOT_FOUND:
		return "there is no such GPU on this machine any more; see nvidia-smi -L"
	default:
		return "see nvidia-smi and dmesg"
	}
}

// callOf names the NVML call that an error comes from, or is "".
func callOf(err error) string {
	var returned *callError
	var hung *hungError
	switch {
	case errors.As(err, &returned):
		return returned.call
	case errors.As(err, &hung):
		return hung.call
	default:
		return ""
	}
}
