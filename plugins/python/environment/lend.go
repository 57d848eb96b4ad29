package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Lend writes down that a task uses the environment for as long as the directory
// stateDir exists, which is absolute. Call it before the task starts, when the
// directory is not there yet, and Release after that: until then nobody asks for it.
//
// The note does not have to outlive the machine, as no task does.
func (e *Environment) Lend(stateDir string) error {
	if !filepath.IsAbs(stateDir) {
		return fmt.Errorf("failed to lend an environment: the state directory %q is not absolute", stateDir)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock == nil {
		return errors.New("failed to lend an environment that was released")
	}
	dir := e.store.path("users", e.id)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return full(e.store.dir, fmt.Errorf("failed to lend an environment: %w", err))
	}
	sum := sha256.Sum256([]byte(stateDir))
	return full(e.store.dir, writeFile(filepath.Join(dir, hex.EncodeToString(sum[:16])), []byte(stateDir)))
}

// Release ends what Get began: from now on only borrowers keep the environment from removal. It may be called twice, and of nil.
func (e *Environment) Release() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock != nil {
		e.lock.close()
		e.lock = nil
	}
}

// lent says whether a task uses an environment, and forgets those that do no more.
// The caller has it exclusively: nobody is about to lend it.
func (s *store) lent(id string) (bool, error) {
	names, err := s.names(filepath.Join("users", id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	inUse := false
	for _, name := range names {
		file := s.path("users", id, name)
		stateDir, err := os.ReadFile(file)
		if err != nil {
			return false, fmt.Errorf("failed to read who uses an environment: %w", err)
		}
		// what a crash left is no task's: writing it down comes before the task's start
		if !strings.HasSuffix(name, temporarySuffix) && filepath.IsAbs(string(stateDir)) {
			_, err = os.Lstat(string(stateDir))
			if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				inUse = true
				continue
			}
			s.used(id) // until now, as far as we know
		}
		if err := os.Remove(file); err != nil {
			return false, fmt.Errorf("failed to forget who used an environment: %w", err)
		}
	}
	return inUse, nil
}
