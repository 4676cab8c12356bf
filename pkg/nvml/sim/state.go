package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// FaultKind says what goes wrong.
type FaultKind string

const (
	// FaultLost makes a GPU fall off the bus: it is still counted, and every call on it returns ERROR_GPU_IS_LOST.
	FaultLost FaultKind = "lost"
	// FaultMissing takes a GPU out of the enumeration, as after a reboot with a dead card: the indices of those behind it move.
	FaultMissing FaultKind = "missing"
	// FaultError makes a call return Fault.Return.
	FaultError FaultKind = "error"
	// FaultHang makes a call block for Fault.Delay, or until the fault is cleared.
	FaultHang FaultKind = "hang"
)

// AnyMinor is the Fault.Minor of a fault in the library itself: its own functions and those of every GPU.
const AnyMinor = -1

// Fault is something that goes wrong with the machine until it is cleared.
type Fault struct {
	Kind FaultKind
	// Minor is the GPU that has the fault, or AnyMinor.
	Minor int
	// Call is the NVML function without its prefix, as go-nvml's method is named: "DeviceGetHandleByIndex", "GetUUID". Empty
	// means every call. It is used by FaultError and FaultHang.
	Call string
	// Return is the result of a FaultError.
	Return nvml.Return
	// Times is how many calls fail or hang, over all processes; 0 means until cleared.
	Times int
	// Delay is how long a FaultHang blocks; 0 means until cleared.
	Delay time.Duration
}

func (f Fault) validate() error {
	if f.Minor < AnyMinor {
		return fmt.Errorf("minor %d: want a GPU's minor number, or %d for the library", f.Minor, AnyMinor)
	}
	if f.Times < 0 || f.Delay < 0 {
		return errors.New("times and delay cannot be negative")
	}
	switch f.Kind {
	case FaultLost, FaultMissing:
		if f.Minor == AnyMinor {
			return fmt.Errorf("a fault of kind %q needs the minor number of a GPU", f.Kind)
		}
	case FaultError:
		if f.Return == nvml.SUCCESS {
			return errors.New("a fault of kind \"error\" needs the error that the call returns, for example ERROR_UNKNOWN")
		}
	case FaultHang:
		if f.Times > 0 && f.Delay == 0 {
			return errors.New("a fault of kind \"hang\" with a number of times needs a delay: a call that hangs until cleared is never done")
		}
	default:
		return fmt.Errorf("unknown kind %q: want lost, missing, error or hang", f.Kind)
	}
	return nil
}

// stateVersion is the form of the state file. A file of another version is refused.
const stateVersion = 1

// content is what the state file holds.
type content struct {
	Version int     `json:"version"`
	Faults  []entry `json:"faults"`
}

// entry is a Fault in its written form.
type entry struct {
	Kind   FaultKind `json:"kind"`
	Minor  int       `json:"minor"`
	Call   string    `json:"call,omitempty"`
	Return string    `json:"return,omitempty"`
	Times  int       `json:"times,omitempty"`
	Delay  string    `json:"delay,omitempty"`
}

// State is the part of a machine that changes: its faults. All processes that open one file see the same state.
// It is safe for concurrent use.
type State struct {
	file string

	mu      sync.Mutex
	faults  []Fault
	read    []byte        // the content of the file that faults were decoded from
	changed chan struct{} // closed and renewed at each change of an in-memory state
}

// OpenState opens the state in stateFile; a file that is missing is a machine without faults.
// An empty name gives a state in memory.
func OpenState(stateFile string) (*State, error) {
	s := &State{file: stateFile, changed: make(chan struct{})}
	if _, err := s.Faults(); err != nil {
		return nil, err
	}
	return s, nil
}

// Inject adds a fault. Calls that begin afterwards, in any process, meet it.
func (s *State) Inject(f Fault) error {
	if err := f.validate(); err != nil {
		return fmt.Errorf("inject a fault: %w", err)
	}
	return s.update(func(faults []Fault) []Fault { return append(faults, f) })
}

// ClearFaults removes all faults; calls that hang go on.
func (s *State) ClearFaults() error {
	return s.update(func([]Fault) []Fault { return nil })
}

// Faults lists the standing faults in the order in which they were injected.
func (s *State) Faults() ([]Fault, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refresh(); err != nil {
		return nil, err
	}
	return slices.Clone(s.faults), nil
}

// take uses up one of the times of the first fault that matches and says which it was.
func (s *State) take(match func(Fault) bool) (Fault, bool, error) {
	faults, err := s.Faults()
	if err != nil {
		return Fault{}, false, err
	}
	i := slices.IndexFunc(faults, match)
	if i < 0 {
		return Fault{}, false, nil
	}
	if faults[i].Times == 0 {
		return faults[i], true, nil
	}
	var taken Fault
	found := false
	err = s.update(func(faults []Fault) []Fault {
		i := slices.IndexFunc(faults, match)
		if i < 0 {
			return faults
		}
		taken, found = faults[i], true
		switch {
		case taken.Times == 1:
			faults = slices.Delete(faults, i, i+1)
		case taken.Times > 1:
			faults[i].Times--
		}
		return faults
	})
	return taken, found, err
}

// refresh reads the file, which is small, and decodes it when it changed. The caller holds mu.
func (s *State) refresh() error {
	if s.file == "" {
		return nil
	}
	data, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		s.faults, s.read = nil, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the simulator's state file: %w", err)
	}
	if s.read != nil && bytes.Equal(data, s.read) {
		return nil
	}
	faults, err := decodeState(data)
	if err != nil {
		return fmt.Errorf("the simulator's state file %s is damaged: %w; remove it to start with a machine without faults", s.file, err)
	}
	s.faults, s.read = faults, data
	return nil
}

// update changes the faults under the lock that all processes share.
func (s *State) update(change func([]Fault) []Fault) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == "" {
		s.faults = change(slices.Clone(s.faults))
		close(s.changed)
		s.changed = make(chan struct{})
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o755); err != nil {
		return fmt.Errorf("make the directory of the simulator's state file: %w", err)
	}
	unlock, err := lockFile(s.file + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.refresh(); err != nil {
		return err
	}
	faults := change(slices.Clone(s.faults))
	data, err := encodeState(faults)
	if err != nil {
		return err
	}
	if err := replaceFile(s.file, data, 0o644); err != nil {
		return fmt.Errorf("write the simulator's state file: %w", err)
	}
	return nil
}

func encodeState(faults []Fault) ([]byte, error) {
	c := content{Version: stateVersion, Faults: []entry{}}
	for _, f := range faults {
		e := entry{Kind: f.Kind, Minor: f.Minor, Call: f.Call, Times: f.Times}
		if f.Return != nvml.SUCCESS {
			e.Return = ReturnName(f.Return)
		}
		if f.Delay != 0 {
			e.Delay = f.Delay.String()
		}
		c.Faults = append(c.Faults, e)
	}
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the simulator's state: %w", err)
	}
	return append(data, '\n'), nil
}

func decodeState(data []byte) ([]Fault, error) {
	var c content
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if c.Version != stateVersion {
		return nil, fmt.Errorf("version %d, want %d", c.Version, stateVersion)
	}
	var faults []Fault
	for i, e := range c.Faults {
		f := Fault{Kind: e.Kind, Minor: e.Minor, Call: e.Call, Times: e.Times}
		var err error
		if e.Return != "" {
			if f.Return, err = ParseReturn(e.Return); err != nil {
				return nil, fmt.Errorf("faults[%d].return: %w", i, err)
			}
		}
		if e.Delay != "" {
			if f.Delay, err = time.ParseDuration(e.Delay); err != nil {
				return nil, fmt.Errorf("faults[%d].delay: %w", i, err)
			}
		}
		if err := f.validate(); err != nil {
			return nil, fmt.Errorf("faults[%d]: %w", i, err)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

// lockFile takes an exclusive lock that ends with unlock or with the process.
func lockFile(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the simulator's state: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing gives the lock back
}

// replaceFile writes name so that a reader sees the old content or the new, never a part.
func replaceFile(name string, data []byte, mode os.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Chmod(mode), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return nil
}
