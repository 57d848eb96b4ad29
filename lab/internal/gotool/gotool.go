// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package gotool finds tools written in Go. .ci/tools pins their versions, so the workspace does not depend on them.
package gotool

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Path returns the path of a program that .ci/tools/NAME pins. The go command builds it once and keeps it in its
// cache.
func Path(ctx context.Context, root, name string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "-modfile="+filepath.Join(".ci", "tools", name, "go.mod"), "-n", name)
	cmd.Dir = root
	// GOWORK=off: -modfile is not allowed in a workspace
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOOS=", "GOARCH=", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("failed to build %s (the first build needs a Go proxy): %w\n%s", name, err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n") // the last line is the path; the others report downloads
	return lines[len(lines)-1], nil
}
