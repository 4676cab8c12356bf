// Package supervise keeps the programs of a control plane or of a node running.
package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"tessera.dev/tessera/test/cluster/internal/cgroup"
	"tessera.dev/tessera/test/cluster/internal/config"
)

const (
	firstPause = 200 * time.Millisecond // before a program that ran well is started again
	longPause  = 5 * time.Second        // at most, before one that keeps failing is
	ranWell    = 10 * time.Second
	grace      = 5 * time.Second // from SIGTERM to SIGKILL
)

// Plan says what one supervisor does.
type Plan struct {
	Cgroup   string           `json:"cgroup"` // folder of the cgroup to join
	Binds    [][2]string      `json:"binds"`  // target and source; not empty: the process is in a mount namespace of its own
	Forward  *Forward         `json:"forward,omitempty"`
	Commands []config.Command `json:"commands"`
	Logs     string           `json:"logs"` // folder
}

// Forward is a TCP forwarder.
type Forward struct {
	Listen string `json:"listen"`
	To     string `json:"to"`
}

// Write puts the plan into a file.
func (p Plan) Write(file string) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("encode a supervisor's plan: %w", err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("write a supervisor's plan: %w", err)
	}
	return nil
}

// Run carries out the plan in a file until ctx ends.
func Run(ctx context.Context, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	var p Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("read the plan %s: %w", file, err)
	}
	if err := cgroup.Join(p.Cgroup); err != nil {
		return err
	}
	if err := bind(p.Binds); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if p.Forward != nil {
		wg.Go(func() { forward(ctx, *p.Forward) })
	}
	for _, c := range p.Commands {
		wg.Go(func() { keep(ctx, c, filepath.Join(p.Logs, c.Name+".log")) })
	}
	return nil
}

// keep runs a command again and again.
func keep(ctx context.Context, c config.Command, logFile string) {
	pause := firstPause
	for ctx.Err() == nil {
		start := time.Now()
		err := run(ctx, c, logFile)
		log.Printf("%s ended after %s: %v", c.Name, time.Since(start).Round(time.Millisecond), err)
		if time.Since(start) > ranWell {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

func run(ctx context.Context, c config.Command, logFile string) error {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", c.Name, err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w", c.Path, err)
	}
	return nil
}
