package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	recordSuffix    = ".json"
	temporaryPrefix = ".tmp-"
	// abandonedAfter is far longer than a write takes. During a rolling update another process may be writing.
	abandonedAfter = 10 * time.Minute
)

// Store is a directory of records. It is safe for concurrent use, also by several processes as long as they do not
// write the same claim's record at the same time.
type Store struct {
	dir string
	// step, when set, is called before every step of a write and may fail it; tests cut the power with it.
	step func(string) error
}

// Corrupt is a file that could not be read and has been set aside.
type Corrupt struct {
	// Path is where the file is now.
	Path string
	Err  error
}

// Open makes the directory if it is missing and removes temporary files that a killed writer left.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the journal's directory: %w", err)
	}
	s := &Store{dir: dir, step: func(string) error { return nil }}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the journal: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), temporaryPrefix) {
			continue
		}
		info, err := entry.Info()
		if err != nil || time.Since(info.ModTime()) < abandonedAfter {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove a temporary file of the journal: %w", err)
		}
	}
	return s, nil
}

func (s *Store) path(uid string) string { return filepath.Join(s.dir, uid+recordSuffix) }

// UIDs lists the claims that have a record, sorted, without reading the records.
func (s *Store) UIDs() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the journal: %w", err)
	}
	var uids []string
	for _, entry := range entries {
		uid, ok := strings.CutSuffix(entry.Name(), recordSuffix)
		if ok && validateUID(uid) == nil {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// Load reads all records, sorted by UID. A file that cannot be read is renamed to .corrupt and returned as such; err is
// for a directory that cannot be used at all.
func (s *Store) Load() (records []Record, corrupt []Corrupt, err error) {
	uids, err := s.UIDs()
	if err != nil {
		return nil, nil, err
	}
	for _, uid := range uids {
		record, ok, err := s.Get(uid)
		switch {
		case err != nil:
			aside, asideErr := s.setAside(uid)
			corrupt = append(corrupt, Corrupt{Path: aside, Err: errors.Join(err, asideErr)})
		case ok:
			records = append(records, record)
		}
	}
	return records, corrupt, nil
}

// setAside renames a file so that nothing reads it again. An older corrupt file of the same claim is kept.
func (s *Store) setAside(uid string) (string, error) {
	source := s.path(uid)
	for n := 0; ; n++ {
		target := source + ".corrupt"
		if n > 0 {
			target = fmt.Sprintf("%s.%d", target, n)
		}
		// Link fails when the target exists, rename would replace it.
		err := os.Link(source, target)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return source, fmt.Errorf("set the record aside: %w", err)
		}
		if err := os.Remove(source); err != nil {
			return source, fmt.Errorf("set the record aside: %w", err)
		}
		return target, syncDir(s.dir)
	}
}

// Get reads one record; ok is false when there is none.
func (s *Store) Get(uid string) (record Record, ok bool, err error) {
	if err := validateUID(uid); err != nil {
		return Record{}, false, err
	}
	data, err := os.ReadFile(s.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, fmt.Errorf("read the record of claim %s: %w", uid, err)
	}
	record, err = decode(data)
	if err != nil {
		return Record{}, false, fmt.Errorf("read the record of claim %s: %w", uid, err)
	}
	if record.UID != uid {
		return Record{}, false, fmt.Errorf("the record of claim %s is about claim %s", uid, record.UID)
	}
	return record, true, nil
}

// Put makes the record durable, replacing an older one of the same claim. When it fails, what was there before is
// there still, unless the failure came after the rename: then the new record is, and a retry or Delete settles it.
func (s *Store) Put(record Record) error {
	data, err := encode(record)
	if err != nil {
		return err
	}
	if err := s.write(s.path(record.UID), data); err != nil {
		return fmt.Errorf("write the record of claim %s: %w", record.UID, err)
	}
	return nil
}

func (s *Store) write(path string, data []byte) (err error) {
	if err := s.step("create"); err != nil {
		return err
	}
	file, err := os.CreateTemp(s.dir, temporaryPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	steps := []struct {
		name string
		do   func() error
	}{
		{"write", func() error { _, err := file.Write(data); return err }},
		{"sync", file.Sync},
		{"close", file.Close},
		{"rename", func() error { return os.Rename(file.Name(), path) }},
		{"sync directory", func() error { return syncDir(s.dir) }},
	}
	for _, step := range steps {
		if err := s.step(step.name); err != nil {
			return err
		}
		if err := step.do(); err != nil {
			return err
		}
	}
	return nil
}

// Delete removes the record durably. It succeeds when there is none.
func (s *Store) Delete(uid string) error {
	if err := validateUID(uid); err != nil {
		return err
	}
	err := os.Remove(s.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("delete the record of claim %s: %w", uid, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
