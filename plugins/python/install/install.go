// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package install runs uv: it finds the node's interpreters, and creates virtual environments. It installs only wheels,
// so no code of a package runs. It uses uv's documented options, as a user without other rights on the node.
package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Installer is a uv program. The zero value means that none was found.
type Installer struct {
	Path    string
	Version string
}

func (i Installer) String() string { return "uv " + i.Version }

// Request describes an environment to create.
type Request struct {
	Python       Python
	Requirements *requirement.Set
	Sources      requirement.Sources // with absolute directories; URL is never empty unless Offline
	Netrc        []byte              // credentials of indexes, may be empty

	// Dir is the empty directory in which to create the environment. Work is for temporary files and downloads; only the
	// user As may enter it. Both belong to As, and are on the same file system. Files in Dir may be hard links to files in
	// Work, so the caller must remove Work afterwards.
	Dir, Work string

	// As is the user that runs uv, nil for this process's user.
	As *syscall.Credential

	// MaxSize limits each of Dir and Work, in bytes; 0: no limit.
	MaxSize int64
}

// build is the creation of one environment.
type build struct {
	with Installer
	Request
	env []string
}

func (i Installer) build(r Request) *build { return &build{with: i, Request: r, env: environ(r.Work)} }

// Install creates the environment: virtual environment, packages, bytecode. The files belong to As. When ctx ends, or
// this process is killed, uv is killed. The error is an *Error if uv failed, and wraps ctx.Err if ctx ended.
func (i Installer) Install(ctx context.Context, r Request) error {
	b := i.build(r)
	packages, err := b.arguments()
	if err != nil {
		return err
	}
	if err := b.uv(ctx, "venv", "--no-project", "--python", b.Python.Path, b.Dir); err != nil {
		return err
	}
	if err := b.uv(ctx, packages...); err != nil {
		return err
	}
	return b.bytecode(ctx, b.Python.Path, b.Dir)
}

// InstallPython downloads an interpreter (see Finder.Downloads) into the directory Python.Key below Dir.
func (i Installer) InstallPython(ctx context.Context, r Request) error {
	b := i.build(r)
	if err := b.uv(ctx, "python", "install", "--install-dir", b.Dir, b.Python.Key); err != nil {
		return err
	}
	dir, err := os.OpenRoot(b.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	entries, err := os.ReadDir(b.Dir)
	for _, e := range entries {
		if e.Name() != b.Python.Key { // uv's lock file, and links with shorter names
			err = errors.Join(err, dir.RemoveAll(e.Name()))
		}
	}
	// sealing refuses the hard links among the terminfo files in the directory share; the node has its own terminfo
	err = errors.Join(err, dir.RemoveAll(filepath.Join(b.Python.Key, "share")))
	if err != nil {
		return err
	}
	installed := filepath.Join(b.Dir, b.Python.Key)
	return b.bytecode(ctx, filepath.Join(installed, "bin/python3"), installed)
}

// Export returns the locked packages of a project (Set.UVLock) as a Set with hashes, for the interpreter of r.
func (i Installer) Export(ctx context.Context, r Request) (*requirement.Set, error) {
	b := i.build(r)
	lock := r.Requirements.UVLock
	_, err := b.file("pyproject.toml", lock.Project)
	if err == nil {
		_, err = b.file("uv.lock", lock.Lock)
	}
	if err != nil {
		return nil, err
	}
	const exported = "exported.txt" // uv derives the format, a requirements file, from the extension
	argv := []string{"export", "--frozen", "--offline", "--python", r.Python.Path, "--no-default-groups",
		"--no-emit-workspace", "--output-file", exported}
	if err := b.uv(ctx, append(argv, chosen(lock.Choice, "")...)...); err != nil {
		return nil, err
	}
	work, err := os.OpenRoot(b.Work) // the builder owns Work: links that lead out of Work are not followed
	if err != nil {
		return nil, err
	}
	defer work.Close()
	return requirement.Choice{}.Lock(exported, work.ReadFile)
}

// chosen returns uv's options for a project's extras and groups. The string project precedes the name of each group. It
// is empty for the project in the working directory.
func chosen(c requirement.Choice, project string) (argv []string) {
	for _, extra := range c.Extras {
		argv = append(argv, "--extra="+extra)
	}
	for _, group := range c.Groups {
		argv = append(argv, "--group="+project+group)
	}
	return argv
}

// arguments writes the files that uv reads, and returns the arguments that install the packages. URLs may have
// credentials, so they are only in these files: all users can see arguments, but only the builder can read the files.
func (b *build) arguments() ([]string, error) {
	r := b.Requirements
	strategy := "first-index" // never take a package of a private index from another index
	if r.Hashed {
		strategy = "unsafe-best-match" // a lock may use several indexes; its hashes identify the files
	}
	argv := []string{"pip", "install", "--python", filepath.Join(b.Dir, "bin/python"), "--link-mode", "hardlink",
		"--index-strategy", strategy, "--keyring-provider", "disabled", "--no-build"}
	lines, err := b.Sources.Options()
	if err != nil {
		return nil, err
	}
	for _, file := range []struct {
		option, name string
		lines        []string
	}{
		{"-r", "requirements.txt", append(lines, r.Lines...)},
		{"-c", "constraints.txt", r.Constraints},
		{"--overrides", "overrides.txt", r.Overrides},
	} {
		if len(file.lines) == 0 { // uv warns about empty files
			continue
		}
		path, err := b.file(file.name, []byte(strings.Join(file.lines, "\n")+"\n"))
		if err != nil {
			return nil, err
		}
		argv = append(argv, file.option, path)
	}
	for n, project := range r.Projects {
		path, err := b.file(fmt.Sprintf("project-%d/pyproject.toml", n), project.Text)
		if err != nil {
			return nil, err
		}
		argv = slices.Concat(argv, []string{"-r", path}, chosen(project.Choice, path+":"))
	}
	if r.NewerThan != "" {
		argv = append(argv, "--exclude-newer="+r.NewerThan)
	}
	if r.Hashed {
		argv = append(argv, "--require-hashes")
	}
	if r.Complete {
		argv = append(argv, "--no-deps")
	}
	if b.Sources.Offline {
		argv = append(argv, "--no-index")
	}
	if len(b.Netrc) == 0 {
		return argv, nil
	}
	path, err := b.file("netrc", b.Netrc)
	b.env = append(b.env, "NETRC="+path)
	return argv, err
}

// file creates a file in Work that the builder can read, and the directory in name, if any. It returns the file's path.
// The builder owns Work, so links that lead out of it are not followed.
func (b *build) file(name string, content []byte) (path string, err error) {
	root, err := os.OpenRoot(b.Work)
	if err != nil {
		return "", fmt.Errorf("failed to open the build's directory: %w", err)
	}
	defer root.Close()
	dir := filepath.Dir(name)
	err = errors.Join(root.MkdirAll(dir, 0o755), root.WriteFile(name, content, 0o644), root.Chmod(name, 0o644))
	if err == nil && dir != "." {
		err = root.Chmod(dir, 0o755) // regardless of the umask
	}
	if err != nil {
		return "", fmt.Errorf("failed to write a file for uv: %w", err)
	}
	return filepath.Join(b.Work, name), nil
}

// environ returns uv's environment. From this process's environment it takes only the variables for trusted
// certificates, proxies, and the mirror of interpreters.
func environ(work string) []string {
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"LANG=C.UTF-8", "LC_ALL=C.UTF-8",
		"HOME=" + work, "TMPDIR=" + work, "XDG_CONFIG_DIRS=" + work,
		"UV_HTTP_TIMEOUT=15",
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "SSL_CERT_DIR", "UV_PYTHON_INSTALL_MIRROR", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY",
		"https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy",
	} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// run runs a program, writes its stdout and stderr to out, and waits for its end.
func (b *build) run(ctx context.Context, out io.Writer, argv ...string) error {
	return program{
		as: b.As, argv: argv, env: b.env, dir: b.Work, writes: []string{b.Dir, b.Work}, stdout: out, stderr: out,
	}.run(ctx)
}

// uv runs uv without the node's configuration, and with a cache for this build only.
func (b *build) uv(ctx context.Context, argv ...string) error {
	argv = slices.Concat([]string{b.with.Path}, argv, []string{"--no-config", "--color", "never",
		"--cache-dir", filepath.Join(b.Work, "cache")})
	if argv[1] != "python" {
		argv = append(argv, "--no-python-downloads")
	}
	running, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { b.watch(running, end) })
	var tail plain.Tail
	err := b.run(running, &tail, argv...)
	end(nil)
	watching.Wait()
	switch {
	case errors.Is(context.Cause(running), errTooLarge) || b.tooLarge(ctx):
		return &Error{Words: fmt.Sprintf("the packages take more than %d MiB, this node's limit (cache_max_size)",
			b.MaxSize>>20)}
	case err != nil:
		return b.explain(ctx, err, tail)
	}
	return nil
}

var errTooLarge = errors.New("the packages are too large")

// watch calls the function end when the build exceeds MaxSize: the size of a package is unknown until it is unpacked.
func (b *build) watch(ctx context.Context, end context.CancelCauseFunc) {
	for ctx.Err() == nil {
		begun := time.Now()
		if b.tooLarge(ctx) {
			end(errTooLarge)
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(200*time.Millisecond, 9*time.Since(begun))): // measure at most a tenth of the time
		}
	}
}

func (b *build) tooLarge(ctx context.Context) bool {
	return b.MaxSize > 0 && max(sizeOf(ctx, b.Dir), sizeOf(ctx, b.Work)) > b.MaxSize // not the sum: they share hard links
}

// sizeOf returns the size of the files in a directory that uv may be changing. It follows no link out of the directory.
func sizeOf(ctx context.Context, dir string) (size int64) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			info, err := d.Info()
			if err == nil {
				size += info.Size()
			}
		}
		return ctx.Err() // errors of files are ignored: uv may have just removed them
	})
	return size
}

// bytecode compiles the modules in a directory, because tasks cannot write there. The sources do not change, so the
// interpreter need not check their hashes (PEP 552). With -S (no site module), no code of the environment runs. The
// packages are split among the processors. A file that does not compile is not an error.
func (b *build) bytecode(ctx context.Context, python, dir string) error {
	modules, first := filepath.Glob(filepath.Join(dir, "lib/*/*"))
	packages, second := filepath.Glob(filepath.Join(dir, "lib/*/site-packages/*"))
	err := errors.Join(first, second)
	if err != nil {
		return err
	}
	modules = slices.DeleteFunc(append(packages, modules...), func(path string) bool {
		return filepath.Base(path) == "site-packages" || slices.Contains([]string{".dist-info", ".pth"}, filepath.Ext(path))
	})
	var all sync.WaitGroup
	for part := range slices.Chunk(modules, 1+len(modules)/min(runtime.NumCPU(), 8)) {
		all.Go(func() {
			argv := []string{python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"}
			_ = b.run(ctx, io.Discard, append(argv, part...)...)
		})
	}
	all.Wait()
	return ctx.Err()
}
