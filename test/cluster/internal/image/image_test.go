package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func digest(t *testing.T, img v1.Image, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func TestImages(t *testing.T) {
	one := Busybox{Program: []byte("program"), Applets: []string{"sh", "ls", "busybox"}}
	other := Busybox{Program: []byte("program"), Applets: []string{"ls", "busybox", "sh"}}
	a, err := one.Workload()
	first := digest(t, a, err)
	b, err := other.Workload()
	if second := digest(t, b, err); first != second {
		t.Errorf("the same content gives %s and %s", first, second)
	}
	p, err := one.Pause()
	if pause := digest(t, p, err); pause == first {
		t.Error("pause and workload are one image")
	}
	c, err := a.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Config.Entrypoint) != 0 || c.OS != "linux" || c.Architecture == "" {
		t.Errorf("configuration %+v", c)
	}
	layers, err := a.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	found := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := found[h.Name]; ok {
			t.Errorf("%s is in the layer twice", h.Name)
		}
		found[h.Name] = h.Linkname
	}
	for name, link := range map[string]string{"bin/sh": "busybox", "bin/ls": "busybox", "bin/busybox": "", "tmp/": "", "etc/passwd": ""} {
		if got, ok := found[name]; !ok || got != link {
			t.Errorf("%s: present %v, link %q, want %q", name, ok, got, link)
		}
	}
}

func TestWrite(t *testing.T) {
	img, err := Busybox{Program: []byte("x")}.Workload()
	want := digest(t, img, err)
	file := filepath.Join(t.TempDir(), "sub", "image.tar")
	if err := Write(file, "tessera.dev/busybox:dev", img); err != nil {
		t.Fatal(err)
	}
	back, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := back.Layers()
	if err != nil || len(layers) != 1 || want == "" {
		t.Errorf("%d layers came back, %v", len(layers), err)
	}
	if err := Write(file, "Not A Reference", img); err == nil {
		t.Error("a wrong reference is taken")
	}
}

func TestFindBusyboxRefusesDynamic(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "busybox"), []byte("ELF /lib64/ld-linux-x86-64.so.2"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if _, err := FindBusybox(t.Context()); err == nil {
		t.Error("a busybox that needs libraries is taken")
	}
}
