package layout

import (
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	t.Setenv("TESSERA_CLUSTER_DIR", "/from/environment")
	for given, want := range map[string]string{"": "/from/environment", "/given": "/given", "/a/../b": "/b"} {
		l, err := New(given)
		if err != nil || l.Dir != want {
			t.Errorf("New(%q) = %q, %v; want %q", given, l.Dir, err, want)
		}
	}
	t.Setenv("TESSERA_CLUSTER_DIR", "")
	if l, err := New(""); err != nil || l.Dir != DefaultDir() {
		t.Errorf("New() = %q, %v", l.Dir, err)
	}
	if _, err := New("/" + strings.Repeat("x", 100)); err == nil || !strings.Contains(err.Error(), "--dir") {
		t.Errorf("a folder too long for sockets gives %v, want an error that says what to do", err)
	}
}

func TestBindsAreApart(t *testing.T) {
	l := Layout{Dir: "/t"}
	sources := map[string]string{}
	for i := range 3 {
		targets := map[string]bool{}
		for _, b := range l.Node(i).Binds() {
			if targets[b[0]] {
				t.Errorf("two folders over %s", b[0])
			}
			targets[b[0]] = true
			if other, ok := sources[b[1]]; ok {
				t.Errorf("%s lies under %s and %s", b[1], b[0], other)
			}
			sources[b[1]] = b[0]
		}
	}
}
