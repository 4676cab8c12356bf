package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownDir makes the directory of a driver root and locks it. A directory with content that the simulator did not write is
// refused: a driver root is pruned, and a wrong path must not cost anyone their files.
func ownDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	marker := filepath.Join(dir, markerFile)
	if _, err := os.Lstat(marker); errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 && entries[0].Name() != markerFile {
			return nil, fmt.Errorf("%s is not empty and is no simulated driver root: name a directory of its own", dir)
		}
	}
	return lockFile(marker)
}

// tree writes files below a root and keeps the first error; after one it does nothing more.
type tree struct {
	root    string
	written map[string]bool // the names of all files and directories, relative to root
	err     error
}

// pciDevice writes a device at dir, which is relative to sys/, and the link to it by bus id.
func (t *tree) pciDevice(dir, class, vendor, device string, node int) {
	for name, value := range map[string]string{
		"class": class, "vendor": vendor, "device": device, "numa_node": strconv.Itoa(node),
	} {
		t.file(filepath.Join("sys", dir, name), []byte(value+"\n"), 0o444)
	}
	t.link(filepath.Join("sys/bus/pci/devices", filepath.Base(dir)), filepath.Join("../../..", dir))
}

func (t *tree) file(name string, data []byte, mode fs.FileMode) {
	full := t.parent(name)
	if t.err != nil {
		return
	}
	if old, err := os.ReadFile(full); err == nil && bytes.Equal(old, data) {
		if info, err := os.Lstat(full); err == nil && info.Mode() == mode {
			return
		}
	}
	t.err = replaceFile(full, data, mode)
}

func (t *tree) link(name, target string) {
	full := t.parent(name)
	if t.err != nil {
		return
	}
	if old, err := os.Readlink(full); err == nil && old == target {
		return
	}
	if t.err = t.remove(full); t.err == nil {
		t.err = os.Symlink(target, full)
	}
}

func (t *tree) device(name string, major, minor uint32) {
	full := t.parent(name)
	if t.err != nil {
		return
	}
	const mode = 0o666
	number := unix.Mkdev(major, minor)
	if info, err := os.Lstat(full); err == nil {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if ok && stat.Mode == syscall.S_IFCHR|mode && stat.Rdev == number {
			return
		}
	}
	if t.err = t.remove(full); t.err != nil {
		return
	}
	if err := unix.Mknod(full, unix.S_IFCHR|mode, int(number)); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: device nodes need root and the capability CAP_MKNOD; run the plugin privileged", err)
		}
		t.err = fmt.Errorf("make the device node %s: %w", full, err)
		return
	}
	t.err = os.Chmod(full, mode) // the umask took bits away
}

// parent makes the directory of a file and returns the file's full name.
func (t *tree) parent(name string) string {
	full := filepath.Join(t.root, name)
	for dir := filepath.Clean(name); !t.written[dir]; dir = filepath.Dir(dir) {
		t.written[dir] = true
	}
	if t.err == nil {
		t.err = os.MkdirAll(filepath.Dir(full), 0o755)
	}
	return full
}

func (t *tree) remove(full string) error {
	if err := os.Remove(full); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// prune removes what an earlier machine, or a process that died, left in the root.
func (t *tree) prune() {
	if t.err != nil {
		return
	}
	t.err = filepath.WalkDir(t.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(t.root, path)
		if err != nil || t.written[name] {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove what another machine left: %w", err)
		}
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}
