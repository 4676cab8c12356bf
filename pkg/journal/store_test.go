package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func record(uid, device string) Record {
	return Record{
		Namespace: "team-a", Name: "claim", UID: uid, State: StatePrepared, BootID: "boot-1",
		Devices: []Device{{
			Request: "gpu", Pool: "node-a", Device: device, GPUUUID: "GPU-1",
			CDIDeviceIDs: []string{"gpu.tessera.dev/gpu=GPU-1"},
		}},
	}
}

func open(t testing.TB, dir string) *Store {
	t.Helper()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func load(t testing.TB, dir string) ([]Record, []Corrupt) {
	t.Helper()
	records, corrupt, err := open(t, dir).Load()
	if err != nil {
		t.Fatal(err)
	}
	return records, corrupt
}

func put(t testing.TB, store *Store, records ...Record) {
	t.Helper()
	for _, r := range records {
		if err := store.Put(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	put(t, store, record("uid-b", "gpu-1"), record("uid-a", "gpu-0"), record("uid-a", "gpu-2"))
	records, corrupt := load(t, dir)
	if diff := cmp.Diff([]Record{record("uid-a", "gpu-2"), record("uid-b", "gpu-1")}, records); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if len(corrupt) != 0 {
		t.Errorf("corrupt: %v", corrupt)
	}
	for range 2 {
		if err := store.Delete("uid-a"); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	if _, ok, err := store.Get("uid-a"); ok || err != nil {
		t.Errorf("after delete: ok=%v err=%v", ok, err)
	}
	if uids, err := store.UIDs(); err != nil || !cmp.Equal(uids, []string{"uid-b"}) {
		t.Errorf("UIDs: %v %v", uids, err)
	}
}

func TestARecordTruncatedAtAnyByteIsSetAsideAndTheOthersStay(t *testing.T) {
	whole, err := encode(record("uid-a", "gpu-0"))
	if err != nil {
		t.Fatal(err)
	}
	for length := range len(whole) {
		dir := t.TempDir()
		put(t, open(t, dir), record("uid-b", "gpu-1"))
		path := filepath.Join(dir, "uid-a.json")
		if err := os.WriteFile(path, whole[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		records, corrupt := load(t, dir)
		if len(records) != 1 || records[0].UID != "uid-b" {
			t.Fatalf("cut at byte %d: records %v", length, records)
		}
		if len(corrupt) != 1 || corrupt[0].Path != path+".corrupt" || corrupt[0].Err == nil {
			t.Fatalf("cut at byte %d: corrupt %v", length, corrupt)
		}
		if _, corrupt := load(t, dir); len(corrupt) != 0 {
			t.Fatalf("cut at byte %d: reported twice", length)
		}
	}
}

func TestEveryChangedByteIsNoticed(t *testing.T) {
	whole, err := encode(record("uid-a", "gpu-0"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		changed := append([]byte(nil), whole...)
		changed[i] ^= 1
		if got, err := decode(changed); err == nil && !cmp.Equal(got, record("uid-a", "gpu-0")) {
			t.Errorf("byte %d changed: decoded as %+v", i, got)
		}
	}
}

func TestAnOlderCorruptFileIsKept(t *testing.T) {
	dir := t.TempDir()
	for n := range 3 {
		if err := os.WriteFile(filepath.Join(dir, "uid-a.json"), fmt.Append(nil, "garbage ", n), 0o600); err != nil {
			t.Fatal(err)
		}
		load(t, dir)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.corrupt*"))
	if err != nil || len(files) != 3 {
		t.Errorf("corrupt files: %v %v", files, err)
	}
}

var errPower = errors.New("power cut")

func TestAPowerCutAtAnyStepLeavesTheOldOrTheNewRecord(t *testing.T) {
	before, after := record("uid-a", "gpu-0"), record("uid-a", "gpu-7")
	var steps []string
	recorder := open(t, t.TempDir())
	recorder.step = func(name string) error { steps = append(steps, name); return nil }
	put(t, recorder, before)
	if len(steps) < 5 {
		t.Fatalf("steps: %v", steps)
	}
	for _, cut := range steps {
		t.Run(cut, func(t *testing.T) {
			dir := t.TempDir()
			store := open(t, dir)
			put(t, store, before)
			store.step = func(name string) error {
				if name == cut {
					return errPower
				}
				return nil
			}
			if err := store.Put(after); !errors.Is(err, errPower) {
				t.Fatalf("put: %v", err)
			}
			records, corrupt := load(t, dir)
			if len(corrupt) != 0 || len(records) != 1 {
				t.Fatalf("records %v, corrupt %v", records, corrupt)
			}
			want := before
			if cut == "sync directory" {
				want = after
			}
			if diff := cmp.Diff(want, records[0]); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
			if left, err := filepath.Glob(filepath.Join(dir, temporaryPrefix+"*")); err != nil || len(left) != 0 {
				t.Errorf("temporary files: %v %v", left, err)
			}
		})
	}
}

func TestTemporaryFilesOfAKilledWriterGoAndThoseOfALiveOneStay(t *testing.T) {
	dir := t.TempDir()
	old, young := filepath.Join(dir, temporaryPrefix+"old"), filepath.Join(dir, temporaryPrefix+"young")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * abandonedAfter)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("young: %v", err)
	}
}

func TestFormatsOfOtherVersions(t *testing.T) {
	payload := json.RawMessage(`{"namespace":"team-a","name":"claim","uid":"uid-a","state":"prepared","bootID":"boot-1","devices":null,"colour":"green"}`)
	file := func(version, minReader int) []byte {
		data, err := json.Marshal(envelope{Version: version, MinReader: minReader, CRC32C: checksum(payload), Record: payload})
		if err != nil {
			t.Fatal(err)
		}
		return append(data, '\n')
	}
	if got, err := decode(file(2, 1)); err != nil || got.UID != "uid-a" {
		t.Errorf("a newer, compatible format: %+v %v", got, err)
	}
	if _, err := decode(file(2, 2)); err == nil || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("a newer, incompatible format: %v", err)
	}
	if _, err := decode(file(0, 0)); err == nil {
		t.Error("no version: no error")
	}
}

func TestBadRecordsAreRefused(t *testing.T) {
	store := open(t, t.TempDir())
	cases := map[string]func(*Record){
		"empty uid":     func(r *Record) { r.UID = "" },
		"path in uid":   func(r *Record) { r.UID = "../etc" },
		"slash in uid":  func(r *Record) { r.UID = "a/b" },
		"long uid":      func(r *Record) { r.UID = strings.Repeat("a", 64) },
		"no namespace":  func(r *Record) { r.Namespace = "" },
		"unknown state": func(r *Record) { r.State = "done" },
	}
	for name, spoil := range cases {
		r := record("uid-a", "gpu-0")
		spoil(&r)
		if err := store.Put(r); err == nil {
			t.Errorf("%s: put without an error", name)
		}
	}
	for _, uid := range []string{"", "..", "a/b"} {
		if err := store.Delete(uid); err == nil {
			t.Errorf("delete %q without an error", uid)
		}
		if _, _, err := store.Get(uid); err == nil {
			t.Errorf("get %q without an error", uid)
		}
	}
}

func TestManyWritersAtOnce(t *testing.T) {
	dir := t.TempDir()
	store := open(t, dir)
	var group sync.WaitGroup
	for n := range 16 {
		group.Go(func() {
			uid := fmt.Sprintf("uid-%d", n)
			for range 10 {
				if err := store.Put(record(uid, "gpu-0")); err != nil {
					t.Error(err)
				}
				if n%2 == 0 {
					if err := store.Delete(uid); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
	if records, corrupt := load(t, dir); len(records) != 8 || len(corrupt) != 0 {
		t.Errorf("%d records, corrupt %v", len(records), corrupt)
	}
}

func FuzzDecode(f *testing.F) {
	whole, err := encode(record("uid-a", "gpu-0"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"version":1,"minReader":1,"crc32c":"00000000","record":null}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := decode(data)
		if err != nil {
			return
		}
		again, err := encode(got)
		if err != nil {
			t.Fatalf("decoded but cannot be encoded: %v", err)
		}
		second, err := decode(again)
		if err != nil || !cmp.Equal(got, second) {
			t.Fatalf("round trip: %+v, %+v, %v", got, second, err)
		}
	})
}

// BenchmarkPut shows that a claim's cost does not grow with the number of other claims.
func BenchmarkPut(b *testing.B) {
	for _, others := range []int{10, 1000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			store := open(b, b.TempDir())
			for n := range others {
				put(b, store, record(fmt.Sprintf("other-%d", n), "gpu-0"))
			}
			for b.Loop() {
				put(b, store, record("uid-a", "gpu-0"))
			}
		})
	}
}
