package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"

	"tessera.dev/tessera/test/cluster/internal/proc"
)

// Status prints what runs; the error says what does not.
func (c *Cluster) Status(ctx context.Context, w io.Writer) error {
	s, err := c.readState()
	if err != nil {
		return fmt.Errorf("no cluster is up in %s: start one with `go run ./test/cluster up`", c.Layout.Dir)
	}
	var failed error
	report := func(what string, err error) {
		word := "ok"
		if err != nil {
			word = err.Error()
			failed = errors.Join(failed, fmt.Errorf("%s: %w", what, err))
		}
		fmt.Fprintf(w, "%-28s %s\n", what, word)
	}
	for _, name := range c.supervisors(s.Nodes) {
		id, err := proc.Read(c.Layout.Pid(name))
		if err == nil && !id.Alive() {
			err = fmt.Errorf("process %d has ended: `go run ./test/cluster up` starts the cluster anew", id.PID)
		}
		report("supervisor "+name, err)
	}
	a, err := c.newAPI(s)
	if err != nil {
		return errors.Join(failed, err)
	}
	report("API server "+server(s), a.ready(ctx))
	report(fmt.Sprintf("%d nodes", s.Nodes), a.nodesReady(ctx, s.Nodes))
	fmt.Fprintf(w, "kubeconfig %s\nlogs       %s\n", c.Layout.Kubeconfig(), c.Layout.Log("*"))
	return failed
}
