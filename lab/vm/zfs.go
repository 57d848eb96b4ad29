// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// zfsModules are those of OpenZFS 2.1, in the order to load them. Later versions have the first and the last only.
var zfsModules = []string{"spl", "znvpair", "zavl", "zunicode", "zcommon", "icp", "zlua", "zzstd", "zfs"}

// findZFS returns a directory of the cache with OpenZFS for a kernel: modules, and the programs zfs and zpool with
// their libraries. Debian has the modules as source in contrib, so they are built, once; for a newer one, remove the
// directory.
func findZFS(ctx context.Context, k kernel, progress func(string, ...any)) (string, error) {
	dir, err := cache.Once(ctx, filepath.Join("vm", "zfs-"+k.release), progress,
		func(scratch string) (string, error) { return makeZFS(ctx, k, scratch, progress) })
	if err != nil {
		return "", fmt.Errorf("failed to make OpenZFS for the VM's kernel: %w", err)
	}
	return dir, nil
}

func makeZFS(ctx context.Context, k kernel, scratch string, progress func(string, ...any)) (string, error) {
	for tool, deb := range map[string]string{"apt-get": "apt", "gcc": "gcc", "make": "make", "strip": "binutils"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%s is missing (apt-get install %s)", tool, deb)
		}
	}
	progress("downloading OpenZFS and the headers of the VM's kernel %s (18 MB)", k.release)
	root := filepath.Join(scratch, "root")
	if err := fetchZFS(ctx, k.release, scratch, root); err != nil {
		return "", err
	}
	source, err := one(filepath.Join(root, "usr/src/zfs-*"))
	if err != nil {
		return "", err
	}
	progress("building %s for the VM's kernel %s: minutes, once", filepath.Base(source), k.release)
	if err := buildZFS(ctx, k.release, root, source); err != nil {
		return "", err
	}
	made := filepath.Join(scratch, "made")
	return made, collectZFS(ctx, root, source, made)
}

// fetchZFS downloads the packages and unpacks them below root.
func fetchZFS(ctx context.Context, release, scratch, root string) error {
	debs := filepath.Join(scratch, "debs")
	if err := os.Mkdir(debs, 0o755); err != nil {
		return err
	}
	if err := download(ctx, debs, nil, "linux-headers-"+release, neededHeaders); err != nil {
		return fmt.Errorf("%w (is the kernel in the cache older than the archive's?)", err)
	}
	options, err := contrib(ctx, scratch)
	if err != nil {
		return err
	}
	if err := download(ctx, debs, options, "zfsutils-linux", neededLibraries, "zfs-dkms"); err != nil {
		return err
	}
	all, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range all {
		if _, err := output(ctx, "", "dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	return nil
}

// Of what the packages depend on, these are not on the machine.
var (
	neededHeaders   = regexp.MustCompile(`(?m)^\s*Depends: (linux-(?:headers|kbuild)-\S+)`)
	neededLibraries = regexp.MustCompile(`(?m)^\s*Depends: (lib\S+linux)$`)
)

// download downloads a package, those that it needs of what it depends on, and more.
func download(ctx context.Context, to string, options []string, name string, needed *regexp.Regexp,
	more ...string) error {
	out, err := output(ctx, "", "apt-cache", slices.Concat(options, []string{"depends", name})...)
	if err != nil {
		return err
	}
	args := slices.Concat(options, []string{"download", name}, more)
	for _, m := range needed.FindAllStringSubmatch(out, -1) {
		args = append(args, m[1])
	}
	_, err = output(ctx, to, "apt-get", args...)
	return err
}

// contrib returns the options by which apt reads the component contrib from where this machine has Debian itself from,
// and reads and changes nothing else of the machine's.
func contrib(ctx context.Context, scratch string) (options []string, err error) {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	out, err := output(ctx, "", "apt-get", "indextargets", "--format",
		"deb [signed-by="+keyring+"] $(REPO_URI) $(RELEASE) contrib",
		"Created-By: Packages", "Component: main", "Origin: Debian")
	if err != nil {
		return nil, err
	}
	if out == "" {
		return nil, errors.New("apt knows no Debian to get it from (apt-get update?)")
	}
	list, lists := filepath.Join(scratch, "sources.list"), filepath.Join(scratch, "lists")
	archives := filepath.Join(scratch, "cache", "archives")
	for _, dir := range []string{filepath.Join(lists, "partial"), filepath.Join(archives, "partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(list, []byte(out), 0o644); err != nil {
		return nil, err
	}
	for _, o := range []string{
		"Dir::Etc::SourceList=" + list, "Dir::Etc::SourceParts=/dev/null", "Dir::State::Lists=" + lists,
		"Dir::Cache=" + filepath.Dir(archives), "APT::Sandbox::User=root", "Acquire::Languages=none",
	} {
		options = append(options, "-o", o)
	}
	_, err = output(ctx, "", "apt-get", append(options, "update")...)
	return options, err
}

// buildZFS builds the modules where they are unpacked.
func buildZFS(ctx context.Context, release, root, source string) error {
	headers := filepath.Join(root, "usr/src/linux-headers-"+release)
	// it names the other package's by the place where it would be installed
	makefile := filepath.Join(headers, "Makefile")
	text, err := os.ReadFile(makefile)
	if err != nil {
		return err
	}
	text = bytes.ReplaceAll(text, []byte(" /usr/src/"), []byte(" "+filepath.Join(root, "usr/src")+"/"))
	if err := os.WriteFile(makefile, text, 0o644); err != nil {
		return err
	}
	common, err := one(filepath.Join(root, "usr/src/linux-headers-*-common"))
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"sh", "./configure", "--with-config=kernel", "--with-linux=" + common, "--with-linux-obj=" + headers},
		{"make", fmt.Sprintf("-j%d", runtime.NumCPU())},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		said := newTail(nil)
		cmd.Dir, cmd.Stdout, cmd.Stderr = source, said, said
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("failed to run %s: %w\n%s", strings.Join(args[:2], " "), err, said)
		}
	}
	return nil
}

// collectZFS moves what is needed into a directory: modules, sbin, lib.
func collectZFS(ctx context.Context, root, source, made string) error {
	move := func(files []string, to string) error {
		if err := os.MkdirAll(filepath.Join(made, to), 0o755); err != nil {
			return err
		}
		for _, f := range files {
			if err := os.Rename(f, filepath.Join(made, to, filepath.Base(f))); err != nil {
				return err
			}
		}
		return nil
	}
	var modules []string
	for _, name := range zfsModules {
		file, err := one(filepath.Join(source, "module", "*", name+".ko"), filepath.Join(source, "module", name+".ko"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		modules = append(modules, file)
	}
	if !strings.HasSuffix(strings.Join(modules, " "), "/zfs.ko") {
		return fmt.Errorf("the build has made %q, and no zfs.ko", modules)
	}
	if _, err := output(ctx, "", "strip", append([]string{"--strip-debug"}, modules...)...); err != nil {
		return err
	}
	var programs, libraries []string
	for _, name := range []string{"zfs", "zpool"} {
		file, err := one(filepath.Join(root, "sbin", name), filepath.Join(root, "usr/sbin", name))
		if err != nil {
			return err
		}
		programs = append(programs, file)
	}
	for _, dir := range []string{"lib", "usr/lib"} {
		found, err := filepath.Glob(filepath.Join(root, dir, "x86_64-linux-gnu", "lib*.so.*"))
		if err != nil {
			return err
		}
		libraries = append(libraries, found...)
	}
	return errors.Join(move(modules, "modules"), move(programs, "sbin"), move(libraries, "lib"))
}

// one returns the only file that matches one of the patterns.
func one(patterns ...string) (string, error) {
	var found []string
	for _, p := range patterns {
		files, err := filepath.Glob(p)
		if err != nil {
			return "", err
		}
		found = append(found, files...)
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%s: %w", patterns[0], fs.ErrNotExist)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("want one file of %q", found)
}

// loadZFS loads the modules of a directory of findZFS, and puts its programs and libraries where Debian's package has
// them. Without a directory it does nothing.
func (v *VM) loadZFS(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	var line strings.Builder
	fmt.Fprintf(&line, "cd '%s'; ", dir)
	for _, name := range zfsModules {
		fmt.Fprintf(&line, "test ! -e modules/%[1]s.ko || insmod modules/%[1]s.ko; ", name)
	}
	line.WriteString("ln -sf $PWD/sbin/* /usr/sbin; ln -sf $PWD/lib/* /usr/lib/x86_64-linux-gnu")
	out, err := v.Output(ctx, "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", line.String())
	if err != nil {
		return fmt.Errorf("failed to load OpenZFS in the VM: %w: %s", err, strings.TrimSpace(out))
	}
	return nil
}
