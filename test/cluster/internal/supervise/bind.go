package supervise

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// bind gives a node's mount namespace its own folders. The caller is in a private mount namespace.
// Mounts are shared inside of it (volumes with Bidirectional propagation need that), never with the outside.
func bind(binds [][2]string) error {
	if len(binds) == 0 {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mounts inside of the node: %w", err)
	}
	for _, b := range binds {
		target, source := b[0], b[1]
		if err := os.MkdirAll(source, 0o755); err != nil {
			return fmt.Errorf("make the node's folder: %w", err)
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s over %s: %w", source, target, err)
		}
		// A group of its own: else mounts below the target would appear below the source too.
		for _, flag := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
			if err := unix.Mount("", target, "", flag, ""); err != nil {
				return fmt.Errorf("share the mount %s: %w", target, err)
			}
		}
	}
	return nil
}
