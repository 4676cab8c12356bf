package supervise

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tessera.dev/tessera/test/cluster/internal/config"
)

const limit = 20 * time.Second

// report makes a pipe that programs under supervision report to, a line each.
func report(t *testing.T) (path string, lines <-chan string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	ch := make(chan string)
	go func() {
		for s := bufio.NewScanner(f); s.Scan(); {
			select {
			case ch <- s.Text():
			case <-t.Context().Done():
				return
			}
		}
	}()
	return path, ch
}

func next(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case l := <-lines:
		return l
	case <-time.After(limit):
		t.Fatal("nothing was reported")
		return ""
	}
}

func TestRunStartsAgainWhatIsKilled(t *testing.T) {
	fifo, lines := report(t)
	dir := t.TempDir()
	plan := Plan{
		Cgroup: filepath.Join(dir, "cgroup"), Logs: dir,
		Commands: []config.Command{{
			Name: "c", Path: "/bin/sh", Args: []string{"-c", `echo "$$ $WORD" >"$FIFO"; echo logged; exec sleep 1000`},
			Env: []string{"FIFO=" + fifo, "WORD=hello"},
		}},
	}
	file := filepath.Join(dir, "plan")
	if err := plan.Write(file); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, file) }()
	seen := map[string]bool{}
	for range 3 {
		pid, word, _ := strings.Cut(next(t, lines), " ")
		if seen[pid] || word != "hello" {
			t.Fatalf("process %s (seen %v) says %q", pid, seen[pid], word)
		}
		seen[pid] = true
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) == 3 {
			break
		}
		if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("Run does not end")
	}
	log, err := os.ReadFile(filepath.Join(dir, "c.log"))
	if err != nil || !strings.Contains(string(log), "logged") {
		t.Errorf("log %q, %v", log, err)
	}
}

func TestRunRefusesDamagedPlan(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), file); err == nil {
		t.Error("a damaged plan is carried out")
	}
}

func TestForward(t *testing.T) {
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	go func() {
		for {
			conn, err := backend.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				data, _ := io.ReadAll(conn) // ends at the caller's half-close
				fmt.Fprintf(conn, "got %s", data)
			}()
		}
	}()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); forward(ctx, Forward{Listen: address, To: backend.Addr().String()}) }()
	var conn net.Conn
	for begin := time.Now(); ; {
		if conn, err = net.Dial("tcp", address); err == nil {
			break
		}
		if time.Since(begin) > limit {
			t.Fatal(err)
		}
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || string(answer) != "got hello" {
		t.Errorf("answer %q, %v", answer, err)
	}
	cancel()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatal("the forwarder does not end")
	}
}
