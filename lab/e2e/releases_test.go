// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/release"
)

// Tests upgrade from the older version to the newer one, and roll back.
const (
	older = "0.1.0"
	newer = "0.1.1"
)

// releases has two releases of exec-lite, built from a clone of the repository in which they are tagged.
type releases struct {
	dir    string   // has a directory with artefacts for each version
	others []string // the static binaries of python and usb
}

// file returns the only artefact of a version whose name matches a pattern.
func (r *releases) file(t testing.TB, version, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir, version, pattern))
	must.NoError(t, err)
	must.SliceLen(t, 1, found, must.Sprintf("%s: %s", version, pattern))
	return found[0]
}

// getReleases builds the releases once.
var getReleases = sync.OnceValues(func() (*releases, error) {
	root, err := build.Root(".")
	if err != nil {
		return nil, err
	}
	r := &releases{dir: filepath.Join(scratch, "releases")}
	clone := filepath.Join(r.dir, "clone")
	git := func(args ...string) error {
		cmd := exec.Command("git", append([]string{"-C", clone, "-c", "user.name=Test", "-c", "user.email=test@example.org"},
			args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("failed to run git %s: %w\n%s", args[0], err, out)
		}
		return nil
	}
	// without tags: those of real releases may have the same names
	out, err := exec.Command("git", "clone", "--quiet", "--shared", "--no-tags", root, clone).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("failed to clone: %w\n%s", err, out)
	}
	for _, version := range []string{older, newer} {
		if version == newer {
			err := errors.Join(changeState(clone), git("commit", "--quiet", "--all", "--message=task: save a new field"))
			if err != nil {
				return nil, err
			}
		}
		if err := r.make(clone, version, git); err != nil {
			return nil, err
		}
	}
	b := build.Builder{Root: root, Static: true, Bin: filepath.Join(r.dir, "others")}
	r.others, err = b.All(context.Background(), "python", "usb")
	return r, errors.Join(err, os.RemoveAll(clone))
})

// make tags the clone's commit with the version, and builds the release.
func (r *releases) make(clone, version string, git func(args ...string) error) error {
	err := git("tag", "plugins/exec-lite/v"+version)
	if err != nil {
		return err
	}
	results, err := release.Build(context.Background(), release.Options{Root: clone, Plugin: "exec-lite",
		Archs: []string{runtime.GOARCH}})
	if err != nil {
		return err
	}
	if results[0].Version != version {
		return fmt.Errorf("the tagged commit was built as %s, not %s", results[0].Version, version)
	}
	return os.Rename(results[0].Dir, filepath.Join(r.dir, version))
}

// changeState changes the core for the newer version: its supervisor is a different program, speaks another protocol,
// and saves an additional field of a task.
func changeState(clone string) error {
	const state, protocol = "internal/core/task/state.go", "internal/core/supervisor/protocol.go"
	for _, edit := range [][3]string{
		{state, "	Version int `json:\"version\"`\n", "	Version int `json:\"version\"`\n" +
			"	Later map[string]int `json:\"later\"`\n"},
		{state, "	st.Version = StateVersion\n", "	st.Version, st.Later = StateVersion, map[string]int{\"n\": 1}\n"},
		{protocol, "const protocolVersion = ", "const protocolVersion = 1 + "},
	} {
		path := filepath.Join(clone, edit[0])
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), edit[1]) {
			return fmt.Errorf("%s has no %q, which the next version changes", path, edit[1])
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), edit[1], edit[2], 1)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
