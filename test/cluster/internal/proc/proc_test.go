package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestParseStat(t *testing.T) {
	const tail = " 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 10"
	for name, c := range map[string]struct {
		stat  string
		state byte
		start uint64
		fails bool
	}{
		"plain":                {stat: "42 (kubelet) S" + tail, state: 'S', start: 98765},
		"parentheses in name":  {stat: "42 (a) Z (b)) R" + tail, state: 'R', start: 98765},
		"spaces and digits":    {stat: "42 (1 2 3 4 5) Z" + tail, state: 'Z', start: 98765},
		"no name":              {stat: "42 kubelet S", fails: true},
		"cut short":            {stat: "42 (kubelet) S 1 2 3", fails: true},
		"start time no number": {stat: "42 (x) S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 never 1", fails: true},
		"empty":                {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			state, start, err := parseStat([]byte(c.stat))
			if (err != nil) != c.fails {
				t.Fatalf("parseStat: %v", err)
			}
			if state != c.state || start != c.start {
				t.Errorf("parseStat = %c, %d, want %c, %d", state, start, c.state, c.start)
			}
		})
	}
}

func TestAlive(t *testing.T) {
	self, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pids", "self.json")
	if err := self.Write(file); err != nil {
		t.Fatal(err)
	}
	read, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if read != self || !read.Alive() {
		t.Errorf("read %+v, alive %v; wrote %+v", read, read.Alive(), self)
	}
	reused, rebooted := self, self
	reused.Start--
	rebooted.BootID = "another"
	for what, id := range map[string]ID{"a reused pid": reused, "a pid of another boot": rebooted} {
		if id.Alive() {
			t.Errorf("%s is taken for the process", what)
		}
	}
}

func TestEndedProcessIsNotAlive(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !id.Alive() {
		t.Error("a running process is not alive")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("killed, yet no error")
	}
	if id.Alive() {
		t.Error("an ended process is alive")
	}
}

func TestReadErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.json")
	if _, err := Read(file); err == nil {
		t.Error("no error for a missing file")
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); err == nil {
		t.Error("no error for a damaged file")
	}
}
