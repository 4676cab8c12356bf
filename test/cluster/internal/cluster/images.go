package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"tessera.dev/tessera/test/cluster/internal/config"
	"tessera.dev/tessera/test/cluster/internal/image"
	"tessera.dev/tessera/test/cluster/internal/layout"
)

// writeOwnImages makes the archives of the pause and the busybox image.
func (c *Cluster) writeOwnImages(ctx context.Context) error {
	b, err := image.FindBusybox(ctx)
	if err != nil {
		return err
	}
	workload, err := b.Workload()
	if err != nil {
		return err
	}
	if err := image.Write(c.Layout.Images("busybox.tar"), config.BusyboxImage, workload); err != nil {
		return err
	}
	pause, err := b.Pause()
	if err != nil {
		return err
	}
	return image.Write(c.Layout.Images("pause.tar"), config.PauseImage, pause)
}

func (c *Cluster) loadOwnImages(ctx context.Context, s state) error {
	return c.eachNode(s, func(n layout.Node) error {
		err := until(ctx, "containerd of "+n.Name, func(ctx context.Context) error {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", n.ContainerdSocket())
			if err != nil {
				return err
			}
			return conn.Close()
		})
		if err != nil {
			return err
		}
		return c.load(ctx, s, n, []string{c.Layout.Images("pause.tar"), c.Layout.Images("busybox.tar")})
	})
}

// LoadImages imports image archives into every node.
func (c *Cluster) LoadImages(ctx context.Context, files []string) error {
	s, err := c.mustRun()
	if err != nil {
		return err
	}
	for i, f := range files {
		if files[i], err = filepath.Abs(f); err != nil {
			return fmt.Errorf("find %s: %w", f, err)
		}
		if _, err := os.Stat(f); err != nil {
			return fmt.Errorf("find the image archive: %w", err)
		}
	}
	if err := c.eachNode(s, func(n layout.Node) error { return c.load(ctx, s, n, files) }); err != nil {
		return err
	}
	c.say("loaded %d archives into %d nodes", len(files), s.Nodes)
	return nil
}

func (c *Cluster) load(ctx context.Context, s state, n layout.Node, files []string) error {
	for _, f := range files {
		cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "ctr"), "-a", n.ContainerdSocket(), "-n", "k8s.io", "images", "import", f)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("import %s into %s: %w\n%s", f, n.Name, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// eachNode calls f for every node at once.
func (c *Cluster) eachNode(s state, f func(layout.Node) error) error {
	errs := make([]error, s.Nodes)
	var wg sync.WaitGroup
	for i := range s.Nodes {
		wg.Go(func() { errs[i] = f(c.Layout.Node(i)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
