package nvml

import (
	"context"
	"fmt"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpuRef names a GPU as far as it is known when a call is made; index -1 is the library as a whole.
type gpuRef struct {
	index int
	// count is how many GPUs NVML had when index was valid.
	count int
	minor int // -1 when unknown
	busID string
	uuid  string
}

func wholeLibrary() gpuRef { return gpuRef{index: -1, minor: -1} }

func (r gpuRef) String() string {
	switch {
	case r.index < 0 && r.uuid == "":
		return "NVML"
	case r.index < 0:
		return "GPU " + r.uuid
	case r.busID != "":
		return fmt.Sprintf("GPU %d (%s)", r.index, r.busID)
	default:
		return fmt.Sprintf("GPU %d", r.index)
	}
}

// same reports whether both are surely one GPU, or both the library. Indices count only while the number of GPUs stays.
func (r gpuRef) same(o gpuRef) bool {
	switch {
	case r.uuid != "" && o.uuid != "":
		return r.uuid == o.uuid
	case r.busID != "" && o.busID != "":
		return r.busID == o.busID
	case r.uuid != "" && r.index < 0, o.uuid != "" && o.index < 0:
		return false
	default:
		return r.index == o.index && r.count == o.count
	}
}

// question is one call of NVML.
type question[T any] struct {
	of      gpuRef
	call    string // the name of go-nvml's method
	timeout time.Duration
	do      func() (T, gonvml.Return)
	// late, if set, gets the answer when nobody waits for it any more.
	late func(gonvml.Return)
}

// ask makes a call in a goroutine of its own and waits for the answer until the deadline. Every call of this package on NVML goes
// through it. A GPU that hangs is not asked: the error is then the one that its unanswered call had.
func ask[T any](ctx context.Context, h *Hardware, q question[T]) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%s: %s: %w", q.of, q.call, err)
	}
	if err := h.calls.hung(q.of); err != nil {
		return none, err
	}
	type answer struct {
		value T
		ret   gonvml.Return
	}
	answers := make(chan answer, 1)
	c := h.calls.begin(q.of, q.call, q.timeout)
	go func() {
		value, ret := q.do()
		answers <- answer{value, ret}
		h.calls.end(c, func() {
			if q.late != nil {
				q.late(ret)
			}
		})
	}()
	deadline := time.NewTimer(q.timeout)
	defer deadline.Stop()
	var err error
	select {
	case a := <-answers:
		return a.value, returnError(q.of, q.call, a.ret)
	case <-deadline.C:
		err = c.hungError()
	case <-ctx.Done():
		err = fmt.Errorf("%s: %s was not answered before the caller gave up: %w", q.of, q.call, context.Cause(ctx))
	}
	if h.calls.abandon(c) {
		return none, err
	}
	a := <-answers // it came at the last moment
	return a.value, returnError(q.of, q.call, a.ret)
}

// query asks with the usual deadline.
func query[T any](ctx context.Context, h *Hardware, of gpuRef, call string, do func() (T, gonvml.Return)) (T, error) {
	return ask(ctx, h, question[T]{of: of, call: call, timeout: h.callTimeout, do: do})
}

// calls are the calls that NVML is working on.
type calls struct {
	mu  sync.Mutex
	out map[*call]struct{}
	// none is closed when the last call returns; nil while there is none out.
	none chan struct{}
}

// call is one call that NVML has not answered.
type call struct {
	of        gpuRef
	name      string
	timeout   time.Duration
	started   time.Time
	abandoned bool
	returned  bool
}

func (c *call) hungError() error { return &hungError{of: c.of, call: c.name, after: c.timeout} }

func (c *calls) begin(of gpuRef, name string, timeout time.Duration) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.out) == 0 {
		c.out, c.none = map[*call]struct{}{}, make(chan struct{})
	}
	begun := &call{of: of, name: name, timeout: timeout, started: time.Now()}
	c.out[begun] = struct{}{}
	return begun
}

// end takes a call off the list. late runs before that, if the caller has gone.
func (c *calls) end(ended *call, late func()) {
	c.mu.Lock()
	ended.returned = true
	abandoned := ended.abandoned
	c.mu.Unlock()
	if abandoned {
		late()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.out, ended)
	if len(c.out) == 0 {
		close(c.none)
		c.none = nil
	}
}

// abandon says that nobody waits for the call any more. It reports false when the call has returned meanwhile.
func (c *calls) abandon(left *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left.returned {
		return false
	}
	left.abandoned = true
	return true
}

// hung returns the error of a call on the same GPU that passed its deadline and has not returned, or nil.
func (c *calls) hung(of gpuRef) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for out := range c.out {
		if out.of.same(of) && time.Since(out.started) >= out.timeout {
			return out.hungError()
		}
	}
	return nil
}

// oldest names the call that is out for the longest time, or is "".
func (c *calls) oldest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *call
	for out := range c.out {
		if first == nil || out.started.Before(first.started) {
			first = out
		}
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("the call %s on %s", first.name, first.of)
}

// wait returns when no call is out.
func (c *calls) wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		none := c.none
		c.mu.Unlock()
		if none == nil {
			return nil
		}
		select {
		case <-none:
		case <-ctx.Done():
			if out := c.oldest(); out != "" {
				return fmt.Errorf("%s has not returned (%w), so the library stays loaded until the process ends: %w", out, context.Cause(ctx), ErrHung)
			}
		}
	}
}
