// Command image writes a container image from built binaries and the shared libraries that they need, without Docker.
// The same input gives the same bytes.
//
//	go run ./hack/image -output dist/tessera-image.tar -reference tessera.dev/tessera:dev bin/a:/usr/bin/a …
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	output := flag.String("output", "", "file to write, a docker archive")
	reference := flag.String("reference", "", "the image's name and tag")
	entrypoint := flag.String("entrypoint", "", "program to run")
	flag.Parse()
	if err := run(context.Background(), *output, *reference, *entrypoint, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, output, reference, entrypoint string, programs []string) error {
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("-reference %q: %w", reference, err)
	}
	files := map[string][]byte{
		"etc/passwd": []byte("root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"),
		"etc/group":  []byte("root:x:0:\nnobody:x:65534:\n"),
	}
	for _, program := range programs {
		source, target, ok := strings.Cut(program, ":")
		if !ok {
			return fmt.Errorf("%q: want SOURCE:/TARGET", program)
		}
		if err := addProgram(ctx, files, source, target); err != nil {
			return err
		}
	}
	layer, err := writeLayer(files)
	if err != nil {
		return err
	}
	image, err := build(layer, entrypoint)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	if err := tarball.WriteToFile(output, tag, image); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return nil
}

// library matches a path in ldd's output: "libc.so.6 => /lib/… (0x…)" or "/lib64/ld-linux-x86-64.so.2 (0x…)".
var library = regexp.MustCompile(`(?m)(?:=>\s+|^\s+)(/\S+)\s+\(0x`)

// addProgram adds the program and what ldd names, under the paths that the program asks for.
func addProgram(ctx context.Context, files map[string][]byte, source, target string) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("run `make build` first: %w", err)
	}
	files[strings.TrimPrefix(target, "/")] = content
	// ldd fails on static programs, which need nothing.
	out, err := exec.CommandContext(ctx, "ldd", source).CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("not a dynamic executable")) || bytes.Contains(out, []byte("statically linked")) {
			return nil
		}
		return fmt.Errorf("ldd %s: %w: %s", source, err, out)
	}
	if bytes.Contains(out, []byte("not found")) {
		return fmt.Errorf("ldd %s: a library is missing on this machine:\n%s", source, out)
	}
	for _, match := range library.FindAllSubmatch(out, -1) {
		path := string(match[1])
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files[strings.TrimPrefix(path, "/")] = content
	}
	return nil
}

// writeLayer is the file system: sorted, owned by root, dated 0.
func writeLayer(files map[string][]byte) ([]byte, error) {
	directories := map[string]bool{"tmp/": true}
	for path := range files {
		for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
			directories[dir+"/"] = true
		}
	}
	entries := slices.Sorted(maps.Keys(directories))
	entries = append(entries, slices.Sorted(maps.Keys(files))...)
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, entry := range entries {
		header := &tar.Header{Name: entry, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[entry]))}
		switch {
		case entry == "tmp/":
			header.Typeflag, header.Mode = tar.TypeDir, 0o1777
		case strings.HasSuffix(entry, "/"):
			header.Typeflag, header.Mode = tar.TypeDir, 0o755
		case bytes.HasPrefix(files[entry], []byte("\x7fELF")):
			header.Mode = 0o755
		}
		if err := writer.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", entry, err)
		}
		if _, err := writer.Write(files[entry]); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", entry, err)
		}
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("end the layer: %w", err)
	}
	return buffer.Bytes(), nil
}

func build(layer []byte, entrypoint string) (v1.Image, error) {
	content, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, content)
	if err != nil {
		return nil, fmt.Errorf("add the layer: %w", err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{
		Env:    []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Labels: map[string]string{"org.opencontainers.image.title": "tessera", "org.opencontainers.image.licenses": "Apache-2.0"},
	}
	if entrypoint != "" {
		config.Config.Entrypoint = []string{entrypoint}
	}
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return nil, fmt.Errorf("set the image's configuration: %w", err)
	}
	return image, nil
}
