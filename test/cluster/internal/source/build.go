package source

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Builder builds the cluster's programs.
type Builder struct {
	Dir   string // of the source modules
	Cache string // see CacheDir
	Out   io.Writer
}

// Build makes the programs that the cache lacks and returns the folder that holds all of them.
func (b Builder) Build(ctx context.Context) (string, error) {
	version, platform, err := goVersion(ctx)
	if err != nil {
		return "", err
	}
	key, err := Key(b.Dir, version, platform)
	if err != nil {
		return "", err
	}
	bin := filepath.Join(b.Cache, key)
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder (set TESSERA_CACHE to another place): %w", err)
	}
	var missing []Program
	for _, p := range Programs() {
		if _, err := os.Stat(filepath.Join(bin, p.Name)); err != nil {
			missing = append(missing, p)
		}
	}
	for i, p := range missing {
		fmt.Fprintf(b.Out, "building %s (%d/%d; all together ~10 min the first time on 2 cores, seconds later)\n", p.Name, i+1, len(missing))
		start := time.Now()
		if err := b.build(ctx, p, bin); err != nil {
			return "", err
		}
		fmt.Fprintf(b.Out, "  built %s in %s\n", p.Name, time.Since(start).Round(time.Second))
	}
	return bin, nil
}

func (b Builder) build(ctx context.Context, p Program, bin string) error {
	temp := filepath.Join(bin, "."+p.Name+".new")
	args := []string{"build", "-trimpath", "-ldflags", ldflags(p.Module), "-o", temp}
	if p.Tags != "" {
		args = append(args, "-tags", p.Tags)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, p.Package)...)
	cmd.Dir = filepath.Join(b.Dir, p.Module)
	cgo := "0"
	if p.Cgo {
		cgo = "1"
	}
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false", "CGO_ENABLED="+cgo)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		os.Remove(temp)
		if ctx.Err() != nil {
			return fmt.Errorf("build %s: %w", p.Name, context.Cause(ctx))
		}
		return fmt.Errorf("build %s (go build %s in %s): %w\n%s", p.Name, p.Package, cmd.Dir, err, out.String())
	}
	if err := os.Rename(temp, filepath.Join(bin, p.Name)); err != nil {
		return fmt.Errorf("put %s into the cache: %w", p.Name, err)
	}
	return nil
}

func goVersion(ctx context.Context) (version, platform string, err error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("ask Go for its version (is `go` on the PATH?): %w", err)
	}
	f := strings.Fields(string(out))
	if len(f) != 3 {
		return "", "", fmt.Errorf("`go env GOVERSION GOOS GOARCH` said %q, three words expected", out)
	}
	return f[0], f[1] + "/" + f[2], nil
}
