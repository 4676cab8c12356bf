// Package image makes the cluster's own images, without Docker and the same on every run.
package image

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// pauseScript ends on the first signal and reaps what is orphaned to it (the shell is process 1 of the sandbox).
const pauseScript = `trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done`

// Busybox is a static busybox and the names of its applets.
type Busybox struct {
	Program []byte
	Applets []string
}

// FindBusybox reads the machine's busybox, which must be statically linked.
func FindBusybox(ctx context.Context) (Busybox, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return Busybox{}, fmt.Errorf("find busybox (Debian's busybox-static): %w", err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return Busybox{}, fmt.Errorf("read busybox: %w", err)
	}
	if bytes.Contains(program, []byte("/ld-linux")) {
		return Busybox{}, fmt.Errorf("%s is not static: install Debian's busybox-static", path)
	}
	out, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return Busybox{}, fmt.Errorf("ask busybox for its applets: %w", err)
	}
	return Busybox{Program: program, Applets: strings.Fields(string(out))}, nil
}

// Workload is the image for workloads: every applet in /bin, no entry point.
func (b Busybox) Workload() (v1.Image, error) {
	return b.build(v1.Config{Cmd: []string{"/bin/sh"}})
}

// Pause is the image of pod sandboxes.
func (b Busybox) Pause() (v1.Image, error) {
	return b.build(v1.Config{Entrypoint: []string{"/bin/sh", "-c", pauseScript}})
}

func (b Busybox) build(c v1.Config) (v1.Image, error) {
	layer, err := b.layer()
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	if err != nil {
		return nil, fmt.Errorf("make busybox's layer: %w", err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, fmt.Errorf("add busybox's layer: %w", err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", architecture
	c.Env = []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"}
	file.Config = c
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return nil, fmt.Errorf("set the image's configuration: %w", err)
	}
	return img, nil
}

// layer is the file system: sorted, owned by root, dated 0.
func (b Busybox) layer() ([]byte, error) {
	headers := []tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(b.Program))},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "root/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "usr/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "usr/bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "usr/bin/env", Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "/bin/busybox"},
		{Name: "var/", Typeflag: tar.TypeDir, Mode: 0o755},
	}
	content := map[string][]byte{
		"bin/busybox": b.Program,
		"etc/group":   []byte("root:x:0:\nnobody:x:65534:\n"),
		"etc/passwd":  []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"),
	}
	for _, a := range b.Applets {
		if a != "busybox" {
			headers = append(headers, tar.Header{Name: "bin/" + a, Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "busybox"})
		}
	}
	slices.SortFunc(headers, func(x, y tar.Header) int { return strings.Compare(x.Name, y.Name) })
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := range headers {
		data := content[headers[i].Name]
		headers[i].Size = int64(len(data))
		if err := w.WriteHeader(&headers[i]); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", headers[i].Name, err)
		}
		if _, err := w.Write(data); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", headers[i].Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("end the layer: %w", err)
	}
	return buf.Bytes(), nil
}

// Write puts an image into a docker archive under a reference such as tessera.dev/busybox:dev.
func Write(file, reference string, img v1.Image) error {
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("image reference %q: %w", reference, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", file, err)
	}
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		return fmt.Errorf("write the image %s: %w", reference, err)
	}
	return nil
}
