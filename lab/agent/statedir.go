// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// longestState is the limit of a state directory's length: a plugin adds its name, the node's id and a file name to
// it, and the path of a unix socket ends at 107 bytes (sun_path, unix(7)).
const longestState = 40

// stateDir is the directory for the state of the plugins of the agent in dir. It is in dir, or in /tmp if that path is
// too long. The name follows from dir, so it is found even if the agent's own state is lost.
func stateDir(dir string) string {
	if p := filepath.Join(dir, "state"); len(p) <= longestState {
		return p
	}
	return filepath.Join("/tmp", fmt.Sprintf("outrider-%.6x", sha256.Sum256([]byte(dir))))
}

// makeStateDir creates it. In /tmp, any user may have created something with its name.
func makeStateDir(path string) error {
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		st, serr := os.Lstat(path)
		if serr != nil {
			return fmt.Errorf("failed to create the plugins' state directory: %w", serr)
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); !st.IsDir() || !ok || int(sys.Uid) != os.Geteuid() {
			return fmt.Errorf("failed to create the plugins' state directory: %s is there and is not ours", path)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to create the plugins' state directory: %w", err)
	}
	return nil
}
