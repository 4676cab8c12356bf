package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// keyedLocks gives one lock per key (a claim's UID or a GPU's UUID). Inside the process a waiter gives up when its
// context ends; between processes, during a rolling update, a lock file keeps the two plugins apart.
type keyedLocks struct {
	// dir holds a lock file per key; "" locks inside the process only. Files stay, so keys must be few: GPUs, not claims.
	dir string

	mu    sync.Mutex
	locks map[string]*keyedLock
}

type keyedLock struct {
	// held is a semaphore of one, so that waiting can be cancelled.
	held chan struct{}
	// users counts holders and waiters; the entry goes when nobody is left.
	users int
}

func newKeyedLocks(dir string) (*keyedLocks, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory for lock files %s: %w", dir, err)
		}
	}
	return &keyedLocks{dir: dir, locks: map[string]*keyedLock{}}, nil
}

// acquire takes the locks of all keys in the given order, which callers keep sorted so that two of them cannot
// wait for each other. It returns the function that releases them, or an error that says which key was busy.
func (l *keyedLocks) acquire(ctx context.Context, keys ...string) (release func(), err error) {
	var releases []func()
	release = func() {
		for i := len(releases) - 1; i >= 0; i-- {
			releases[i]()
		}
	}
	for _, key := range keys {
		one, err := l.acquireOne(ctx, key)
		if err != nil {
			release()
			return nil, err
		}
		releases = append(releases, one)
	}
	return release, nil
}

func (l *keyedLocks) acquireOne(ctx context.Context, key string) (func(), error) {
	l.mu.Lock()
	lock, ok := l.locks[key]
	if !ok {
		lock = &keyedLock{held: make(chan struct{}, 1)}
		l.locks[key] = lock
	}
	lock.users++
	l.mu.Unlock()

	select {
	case lock.held <- struct{}{}:
	case <-ctx.Done():
		l.forget(key, lock)
		return nil, fmt.Errorf("wait for %s, which another claim is working on: %w", key, context.Cause(ctx))
	}
	unlock := func() {
		<-lock.held
		l.forget(key, lock)
	}
	if l.dir == "" {
		return unlock, nil
	}
	file, err := l.lockFile(ctx, key)
	if err != nil {
		unlock()
		return nil, err
	}
	return func() {
		// Closing the file drops the lock.
		_ = file.Close()
		unlock()
	}, nil
}

func (l *keyedLocks) forget(key string, lock *keyedLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lock.users--
	if lock.users == 0 {
		delete(l.locks, key)
	}
}

// lockFile takes the lock that the other plugin process of a rolling update respects. That process holds it for one
// Prepare at most, so waiting in flock is bounded; a goroutine owns the wait, and closes the file if nobody wants it.
func (l *keyedLocks) lockFile(ctx context.Context, key string) (*os.File, error) {
	path := filepath.Join(l.dir, key+".lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	err = flock(file, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return file, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		_ = file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	locked := make(chan error)
	go func() {
		err := flock(file, unix.LOCK_EX)
		select {
		case locked <- err:
		case <-ctx.Done():
			_ = file.Close()
		}
	}()
	select {
	case err := <-locked:
		if err != nil {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return file, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %s, which another plugin process holds: %w", path, context.Cause(ctx))
	}
}

// flock repeats the system call when a signal interrupts it, as the Go runtime's own signals do.
func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
