// Package proc remembers processes in files and tells whether they still run, never mistaking a reused pid for them.
package proc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ID is one process of one boot.
type ID struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"startTicks"` // clock ticks since boot, field 22 of /proc/PID/stat
	BootID string `json:"bootID"`
}

// Of returns the identity of a running process.
func Of(pid int) (ID, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	state, start, err := parseStat(stat)
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	if state == 'Z' || state == 'X' {
		return ID{}, fmt.Errorf("process %d has ended: %w", pid, os.ErrProcessDone)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ID{}, fmt.Errorf("identify this boot: %w", err)
	}
	return ID{PID: pid, Start: start, BootID: strings.TrimSpace(string(boot))}, nil
}

// parseStat reads the state and the start time from the text of /proc/PID/stat. The command name may hold anything.
func parseStat(stat []byte) (state byte, start uint64, err error) {
	_, rest, ok := bytes.Cut(stat, []byte("("))
	end := bytes.LastIndexByte(rest, ')')
	if !ok || end < 0 {
		return 0, 0, fmt.Errorf("no command name in stat %q", stat)
	}
	f := strings.Fields(string(rest[end+1:]))
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("%d fields in stat %q, 22 expected", len(f)+2, stat)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("start time in stat %q: %w", stat, err)
	}
	return f[0][0], start, nil
}

// Alive says whether this very process still runs.
func (id ID) Alive() bool {
	now, err := Of(id.PID)
	return err == nil && now == id
}

// Write puts the identity into a file.
func (id ID) Write(file string) error {
	data, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode process %d: %w", id.PID, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the folder of pid files: %w", err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return fmt.Errorf("write a pid file: %w", err)
	}
	return nil
}

// Read gets an identity from a file.
func Read(file string) (ID, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return ID{}, fmt.Errorf("read a pid file: %w", err)
	}
	var id ID
	if err := json.Unmarshal(data, &id); err != nil {
		return ID{}, fmt.Errorf("read the pid file %s: %w", file, err)
	}
	return id, nil
}
