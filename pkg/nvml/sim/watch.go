package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// hang blocks until fault is no longer in the state, or for fault.Delay where it has one.
func (s *State) hang(fault Fault) error {
	if fault.Delay > 0 {
		return s.hangFor(fault)
	}
	return s.hangUntilCleared(fault, time.Time{})
}

// hangFor ends with the delay, or earlier when a fault without a count is cleared.
func (s *State) hangFor(fault Fault) error {
	if fault.Times > 0 { // used up when it was taken: there is nothing left to clear
		timer := time.NewTimer(fault.Delay)
		defer timer.Stop()
		<-timer.C
		return nil
	}
	return s.hangUntilCleared(fault, time.Now().Add(fault.Delay))
}

func (s *State) hangUntilCleared(fault Fault, deadline time.Time) error {
	if s.file == "" {
		return s.waitInMemory(fault, deadline)
	}
	watch, err := watchDir(filepath.Dir(s.file))
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := watch.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("set the end of a simulated hang: %w", err)
	}
	events := make([]byte, 16*unix.SizeofInotifyEvent+16*unix.NAME_MAX)
	for {
		faults, err := s.Faults()
		if err != nil {
			return err
		}
		if !slices.Contains(faults, fault) {
			return nil
		}
		_, err = watch.Read(events)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch the simulator's state: %w", err)
		}
	}
}

func (s *State) waitInMemory(fault Fault, deadline time.Time) error {
	var end <-chan time.Time // nil, and so never ready, without a deadline
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		end = timer.C
	}
	for {
		s.mu.Lock()
		standing, changed := slices.Contains(s.faults, fault), s.changed
		s.mu.Unlock()
		if !standing {
			return nil
		}
		select {
		case <-changed:
		case <-end:
			return nil
		}
	}
}

// watchDir reports each file that appears in, or goes from, a directory.
func watchDir(dir string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_CREATE); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), watch.Close())
	}
	return watch, nil
}
