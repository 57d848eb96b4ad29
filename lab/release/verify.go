// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"archive/zip"
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// VerifyTwice builds the last commit of the checkout twice, in clones of different paths, and returns an error if any
// file differs.
func VerifyTwice(ctx context.Context, o Options) (results []Result, err error) {
	plugins, err := o.resolve()
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "outrider-verify-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if changed, err := git(ctx, o.Root, "status", "--porcelain"); err == nil && changed != "" {
		o.Say("The last commit is built: changes that are not committed have no part in it")
	}
	var twice [2][]Result
	for i, dir := range []string{"a", "another/folder/b"} {
		o.Progress("build %d of 2", i+1)
		if twice[i], err = buildClone(ctx, o, plugins, "HEAD", filepath.Join(scratch, dir)); err != nil {
			return nil, err
		}
	}
	for i, r := range twice[0] {
		if err := sameFiles(r.Dir, twice[1][i].Dir); err != nil {
			return nil, fmt.Errorf("two builds of %s differ: %w", r.Plugin.Name, err)
		}
	}
	return twice[0], nil
}

// sameFiles compares two directories of a release, and names every file that differs.
func sameFiles(a, b string) error {
	names, err := listed(a)
	if err != nil {
		return err
	}
	others, err := listed(b)
	if err != nil {
		return err
	}
	if !slices.Equal(names, others) {
		return fmt.Errorf("one has the files %v, the other %v", names, others)
	}
	var errs []error
	for _, name := range names {
		one, err := os.ReadFile(filepath.Join(a, name))
		if err != nil {
			return err
		}
		other, err := os.ReadFile(filepath.Join(b, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(one, other) {
			errs = append(errs, fmt.Errorf("%s differs", name))
		}
	}
	return errors.Join(errs...)
}

// VerifyFile builds what a published zip was built from, as its binary tells, and compares. An error says what differs.
func VerifyFile(ctx context.Context, o Options, file string) (result Result, err error) {
	got, err := readZip(file)
	if err != nil {
		return result, err
	}
	info, p, err := got.origin(&o)
	if err != nil {
		return result, fmt.Errorf("%s: %w", file, err)
	}
	b := binary{plugin: p, info: info}
	revision := b.setting("vcs.revision")
	if !isRevision.MatchString(revision) {
		return result, fmt.Errorf("the program in %s does not tell its commit", file)
	}
	if b.dirty() {
		return result, fmt.Errorf("%s was built of changes that were not committed, which nobody else has", file)
	}
	if _, err := git(ctx, o.Root, "cat-file", "-e", revision+"^{commit}"); err != nil {
		return result, fmt.Errorf("%s is of commit %s, which is not in this checkout: try git fetch --tags", file, revision)
	}
	o.Say("%s %s of commit %s, by %s", p.Name, b.version(), revision, info.GoVersion)
	if err := o.choose(ctx, info.GoVersion); err != nil {
		return result, err
	}
	b.libusb = b.setting("CGO_ENABLED") == "1"
	o.Archs, o.Libusb = []string{b.setting("GOARCH")}, &b.libusb
	scratch, err := os.MkdirTemp("", "outrider-verify-")
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	results, err := buildClone(ctx, o, []build.Plugin{p}, revision, filepath.Join(scratch, "clone"))
	if err != nil {
		return result, err
	}
	result = results[0]
	i := slices.IndexFunc(result.Files, func(name string) bool {
		return strings.HasPrefix(name, b.name()+"_") && strings.HasSuffix(name, ".zip")
	})
	if i < 0 {
		return result, fmt.Errorf("the commit gives no zip of this kind, only %v", result.Files)
	}
	want, err := readZip(filepath.Join(result.Dir, result.Files[i]))
	if err != nil {
		return result, err
	}
	return result, got.compare(want, result.Files[i])
}

// choose sets the toolchain to the one with which something was built.
func (o *Options) choose(ctx context.Context, goVersion string) error {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Dir = o.Root
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("failed to ask for the version of Go: %w", err)
	}
	if here := strings.TrimSpace(string(out)); here != goVersion {
		// what follows, such as -X:jsonv2, is an experiment, which no release is built with
		o.Toolchain, _, _ = strings.Cut(goVersion, "-X:")
		o.Say("Go is %s here: the go command gets %s (GOTOOLCHAIN), since another one gives other bytes", here, o.Toolchain)
	}
	return nil
}

var isRevision = regexp.MustCompile("^[0-9a-f]{40,64}$")

// archive is a zip in memory.
type archive struct {
	raw   []byte
	files map[string][]byte
}

// maxFile limits what a file in an archive may have when it is unpacked.
const maxFile = 1 << 30

func readZip(path string) (archive, error) {
	a := archive{files: map[string][]byte{}}
	var err error
	if a.raw, err = os.ReadFile(path); err != nil {
		return a, err
	}
	r, err := zip.NewReader(bytes.NewReader(a.raw), int64(len(a.raw)))
	if err != nil {
		return a, fmt.Errorf("%s: %w", path, err)
	}
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			return a, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
		text, err := io.ReadAll(io.LimitReader(in, maxFile))
		in.Close()
		if err != nil {
			return a, fmt.Errorf("%s: %s: %w", path, f.Name, err)
		}
		a.files[f.Name] = text
	}
	return a, nil
}

// origin is what the binary in a zip says of itself.
func (a archive) origin(o *Options) (*debug.BuildInfo, build.Plugin, error) {
	for name, text := range a.files {
		info, err := buildinfo.Read(bytes.NewReader(text))
		if err != nil {
			continue
		}
		o.Plugin = path.Base(info.Main.Path)
		plugins, err := o.resolve()
		if err != nil {
			return nil, build.Plugin{}, err
		}
		if plugins[0].Binary != name {
			return nil, build.Plugin{}, fmt.Errorf("%s in it is the program %s", name, info.Main.Path)
		}
		return info, plugins[0], nil
	}
	return nil, build.Plugin{}, errors.New("no program in it tells what it was built from")
}

// compare returns an error that says in what the archive differs from one that was built now.
func (a archive) compare(built archive, name string) error {
	if bytes.Equal(a.raw, built.raw) {
		return nil
	}
	errs := []error{fmt.Errorf("it is not the %s that this commit gives", name)}
	for _, file := range slices.Sorted(maps.Keys(built.files)) {
		text := built.files[file]
		switch other, found := a.files[file]; {
		case !found:
			errs = append(errs, fmt.Errorf("%s is missing in it", file))
		case !bytes.Equal(text, other):
			errs = append(errs, fmt.Errorf("%s differs%s", file, difference(text, other)))
		}
	}
	for _, file := range slices.Sorted(maps.Keys(a.files)) {
		if _, found := built.files[file]; !found {
			errs = append(errs, fmt.Errorf("%s should not be in it", file))
		}
	}
	if len(errs) == 1 {
		errs = append(errs, errors.New("the files in it are the same: the archive was packed by something else"))
	}
	return errors.Join(errs...)
}

// difference tells of two programs what they say differently of their builds.
func difference(built, got []byte) string {
	want, err := buildinfo.Read(bytes.NewReader(built))
	if err != nil {
		return ""
	}
	is, err := buildinfo.Read(bytes.NewReader(got))
	if err != nil {
		return ""
	}
	lines := strings.Split(want.String(), "\n")
	var more []string
	for line := range strings.SplitSeq(is.String(), "\n") {
		if !slices.Contains(lines, line) {
			more = append(more, strings.ReplaceAll(line, "\t", " "))
		}
	}
	if len(more) == 0 {
		return ", though it claims the same build"
	}
	return ", and it claims: " + strings.Join(more, "; ")
}
