// Package builders says which users build what tasks then use, such as environments
// of packages: no task runs as one of them, in whatever driver, since it could change
// what is being built.
package builders

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// First and Last are the user and group ids that are builders' on every node. They are outside of
// Nomad's dynamic users (80000 to 89999), of systemd's ids (60001 to 60513, 61184 to 65519, 65534) and of subordinate
// ids (from 100000, subuid(5)).
const First, Last = 79900, 79999

// Dir is where Declare notes others, for all drivers of a node. Only root can write there.
const Dir = "/run/outrider/builders"

// Reserved says whether an id is a builder's on every node.
func Reserved(id uint32) bool { return First <= id && id <= Last }

// Declare makes ids those of builders until the machine is started anew. dir is Dir, but in tests. The caller is root.
func Declare(dir string, ids ...uint32) error {
	if err := Make(dir); err != nil {
		return err
	}
	for _, id := range ids {
		if Reserved(id) {
			continue
		}
		f, err := os.OpenFile(file(dir, id), os.O_CREATE|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return fmt.Errorf("failed to note that %d is a builder's id: %w", id, err)
		}
		f.Close()
	}
	return nil
}

// Make makes dir where it is missing. The error says what is wrong with one that others than root could change.
func Make(dir string) error {
	f, err := owndir.Make(dir, 0o700)
	if err != nil {
		return fmt.Errorf("failed to make the directory of builders: %w", err)
	}
	return f.Close()
}

// Is says whether an id is a builder's: it is reserved, or was declared. The error is of a dir that others
// than root could have changed: whose ids are builders' is not known then.
func Is(dir string, id uint32) (bool, error) {
	if Reserved(id) {
		return true, nil
	}
	_, err := os.Lstat(file(dir, id))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return false, nil // who is not root runs tasks as itself alone, and nothing here is built by it for others
	case !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("failed to find out whether %d is a builder's id: %w", id, err)
	}
	if err := owndir.Check(dir); err != nil { // a missing one is fine: no builder was declared on this node
		return false, fmt.Errorf("failed to find out who builds on this node: %w", err)
	}
	return false, nil
}

func file(dir string, id uint32) string {
	return filepath.Join(dir, strconv.FormatUint(uint64(id), 10))
}
