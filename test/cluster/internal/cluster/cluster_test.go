package cluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tessera.dev/tessera/test/cluster/internal/layout"
	"tessera.dev/tessera/test/cluster/internal/proc"
)

func testCluster(t *testing.T) *Cluster {
	t.Helper()
	return &Cluster{Layout: layout.Layout{Dir: filepath.Join(t.TempDir(), "c")}, Out: t.Output()}
}

func TestCountReady(t *testing.T) {
	const list = `{"items":[
 {"metadata":{"name":"a"},"status":{"conditions":[{"type":"MemoryPressure","status":"True"},{"type":"Ready","status":"True"}]}},
 {"metadata":{"name":"b"},"status":{"conditions":[{"type":"Ready","status":"False","message":"no network"}]}},
 {"metadata":{"name":"c"},"status":{}}]}`
	ready, reasons, err := countReady([]byte(list))
	if err != nil || ready != 1 || len(reasons) != 1 || reasons[0] != "b: no network" {
		t.Errorf("countReady = %d, %q, %v", ready, reasons, err)
	}
	if _, _, err := countReady([]byte("<html>")); err == nil {
		t.Error("no error for nonsense")
	}
}

func TestFailedChecks(t *testing.T) {
	got := failedChecks([]byte("[+]ping ok\n[-]poststarthook/rbac failed: reason withheld\n[-]etcd failed\nreadyz check failed\n"))
	if got != "poststarthook/rbac, etcd" {
		t.Errorf("failedChecks = %q", got)
	}
}

func TestQuote(t *testing.T) {
	if got := quote(`/a b/it's`); got != `'/a b/it'\''s'` {
		t.Error(got)
	}
}

// TestRunning goes through the states in which a crash can leave a cluster.
func TestRunning(t *testing.T) {
	c := testCluster(t)
	if _, ok := c.running(); ok {
		t.Error("running without a state file")
	}
	if err := os.MkdirAll(c.Layout.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := proc.Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range c.supervisors(2) {
		if err := self.Write(c.Layout.Pid(name)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, s state, want bool) {
		t.Helper()
		if err := c.writeState(s); err != nil {
			t.Fatal(err)
		}
		if _, ok := c.running(); ok != want {
			t.Errorf("%s: running %v", what, ok)
		}
		var out bytes.Buffer
		if err := c.Env(&out); (err == nil) != want {
			t.Errorf("%s: env: %v", what, err)
		}
		if want && !strings.Contains(out.String(), "export KUBECONFIG='"+c.Layout.Kubeconfig()+"'\n") {
			t.Errorf("env prints %q", out.String())
		}
	}
	check("a start that did not end", state{Nodes: 2}, false)
	check("all alive", state{Nodes: 2, Ready: true}, true)
	check("a node without supervisor", state{Nodes: 3, Ready: true}, false)
	gone := self
	gone.Start--
	if err := gone.Write(c.Layout.Pid(controlPlane)); err != nil {
		t.Fatal(err)
	}
	check("a supervisor that ended", state{Nodes: 2, Ready: true}, false)
}

func TestUntil(t *testing.T) {
	calls := 0
	err := until(t.Context(), "x", func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("%d calls, %v", calls, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err = until(ctx, "the thing", func(context.Context) error { return errors.New("its reason") })
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the thing") || !strings.Contains(err.Error(), "its reason") {
		t.Errorf("until = %v", err)
	}
}

func TestUpRefusesImpossibleSizes(t *testing.T) {
	for _, n := range []int{-1, 0, layout.MaxNodes + 1} {
		if err := testCluster(t).Up(t.Context(), UpOptions{Nodes: n}); err == nil {
			t.Errorf("%d nodes are taken", n)
		}
	}
}

func TestWithLog(t *testing.T) {
	c := testCluster(t)
	failure := errors.New("it failed")
	if err := c.withLog(failure, "x"); !errors.Is(err, failure) {
		t.Errorf("without a log: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(c.Layout.Log("x")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Layout.Log("x"), []byte("first\n"+strings.Repeat("line\n", 20)+"last\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := c.withLog(failure, "x")
	if !errors.Is(err, failure) || !strings.Contains(err.Error(), "last") || strings.Contains(err.Error(), "first") {
		t.Errorf("with a log: %v", err)
	}
}
