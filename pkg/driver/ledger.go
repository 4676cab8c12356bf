package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"tessera.dev/tessera/pkg/journal"
)

// ledger is the journal with an index in memory: which claims hold which GPU. Another plugin process may write to the
// same journal during a rolling update, so refresh reads what is new before a decision.
type ledger struct {
	store *journal.Store

	mu      sync.Mutex
	records map[string]journal.Record
	// released is closed, and replaced, whenever a record goes.
	released chan struct{}
}

// openLedger reads the whole journal. Records that cannot be read are set aside by the journal and returned.
func openLedger(dir string) (*ledger, []journal.Corrupt, error) {
	store, err := journal.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	records, corrupt, err := store.Load()
	if err != nil {
		return nil, nil, err
	}
	l := &ledger{store: store, records: map[string]journal.Record{}, released: make(chan struct{})}
	for _, record := range records {
		l.records[record.UID] = record
	}
	return l, corrupt, nil
}

// refresh makes the index agree with the directory. It lists names and reads only records that it does not know.
func (l *ledger) refresh() error {
	// Listing under the lock: a put or delete of this process beside it is then either seen whole or follows.
	l.mu.Lock()
	defer l.mu.Unlock()
	uids, err := l.store.UIDs()
	if err != nil {
		return err
	}
	present := make(map[string]bool, len(uids))
	for _, uid := range uids {
		present[uid] = true
		if _, known := l.records[uid]; known {
			continue
		}
		record, ok, err := l.store.Get(uid)
		if err != nil {
			return fmt.Errorf("read the journal record of claim %s: %w", uid, err)
		}
		if ok {
			l.records[uid] = record
		}
	}
	for uid := range l.records {
		if !present[uid] {
			l.forget(uid)
		}
	}
	return nil
}

func (l *ledger) get(uid string) (journal.Record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	record, ok := l.records[uid]
	return record, ok
}

// all returns the records sorted by claim UID.
func (l *ledger) all() []journal.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.records), byUID)
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.records)
}

func byUID(a, b journal.Record) int { return strings.Compare(a.UID, b.UID) }

// holder returns the record of another claim that has the GPU for itself, and a channel that closes when any record
// goes after this look.
func (l *ledger) holder(gpuUUID, exceptUID string) (record journal.Record, found bool, released <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, record := range slices.SortedFunc(maps.Values(l.records), byUID) {
		if record.UID != exceptUID && slices.ContainsFunc(record.Devices, func(d journal.Device) bool {
			return d.GPUUUID == gpuUUID && !d.Admin
		}) {
			return record, true, l.released
		}
	}
	return journal.Record{}, false, nil
}

// put makes the record durable. When that fails, nothing of it is left, neither on disk nor in memory.
func (l *ledger) put(record journal.Record) error {
	if err := l.store.Put(record); err != nil {
		// The failure may have come after the rename.
		return errors.Join(err, l.delete(record.UID))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records[record.UID] = record
	return nil
}

func (l *ledger) delete(uid string) error {
	if err := l.store.Delete(uid); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(uid)
	return nil
}

// forget runs under mu.
func (l *ledger) forget(uid string) {
	if _, ok := l.records[uid]; !ok {
		return
	}
	delete(l.records, uid)
	close(l.released)
	l.released = make(chan struct{})
}

// recordGPUs returns the GPUs of a record in the order in which they are locked.
func recordGPUs(record journal.Record) []string {
	uuids := make([]string, 0, len(record.Devices))
	for _, device := range record.Devices {
		uuids = append(uuids, device.GPUUUID)
	}
	return sortedSet(uuids)
}
