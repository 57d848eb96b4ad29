// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package install runs uv: it finds the node's interpreters, and creates virtual environments from wheels alone, so
// that no code of a package runs. It uses uv's documented options, as a user without other rights on the node.
package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Installer is a uv. The zero value is none.
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

	// Dir is the empty directory in which to create the environment, Work one for temporary files and downloads, which
	// only As may enter. Files of Dir may be linked to files in Work, which is to be removed. Both belong to As, and are
	// on one file system.
	Dir, Work string

	// As is the user that runs uv, nil for this process's user.
	As *syscall.Credential

	// MaxSize bounds the environment, and what is in Work, in bytes; 0 is no limit.
	MaxSize int64
}

// build is one run of uv.
type build struct {
	with Installer
	Request
	root *os.Root // of Work
	env  []string
}

// begin opens Work. The caller closes root.
func (i Installer) begin(r Request) (*build, error) {
	root, err := os.OpenRoot(r.Work)
	if err != nil {
		return nil, fmt.Errorf("failed to open the directory of the build: %w", err)
	}
	return &build{with: i, Request: r, root: root, env: environ(r.Work)}, nil
}

// Install creates the environment: virtual environment, packages, bytecode. The files belong to As. When ctx ends, or
// this process is killed, uv is killed. The error is an *Error if uv failed, and wraps that of ctx if it ended.
func (i Installer) Install(ctx context.Context, r Request) error {
	b, err := i.begin(r)
	if err != nil {
		return err
	}
	defer b.root.Close()
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
	return b.bytecode(ctx)
}

// Export converts a project that uv locked (Set.UVLock) to a Set for the interpreter.
func (i Installer) Export(ctx context.Context, r Request) (*requirement.Set, error) {
	b, err := i.begin(r)
	if err != nil {
		return nil, err
	}
	defer b.root.Close()
	lock := r.Requirements.UVLock
	argv := []string{"export", "--frozen", "--offline", "--python", r.Python.Path, "--no-default-groups"}
	for _, extra := range lock.Choice.Extras {
		argv = append(argv, "--extra="+extra)
	}
	for _, group := range lock.Choice.Groups {
		argv = append(argv, "--group="+group)
	}
	project, locked := "pyproject.toml", "uv.lock"
	if lock.Script {
		project, locked = "script.py", "script.py.lock"
		argv = append(argv, "--script", project)
	} else {
		argv = append(argv, "--no-emit-workspace")
	}
	if _, err := b.file(project, lock.Project); err != nil {
		return nil, err
	}
	if _, err := b.file(locked, lock.Lock); err != nil {
		return nil, err
	}
	const exported = "exported.txt" // a requirements file, as its name says to uv
	if err := b.uv(ctx, append(argv, "--output-file", exported)...); err != nil {
		return nil, err
	}
	return requirement.Choice{}.Lock(exported, b.root.ReadFile)
}

// arguments writes the files that uv reads, and returns the arguments that install the packages. URLs may have
// credentials: only the builder can read the files, and arguments, which all users can see, have no URL.
func (b *build) arguments() ([]string, error) {
	r := b.Requirements
	strategy := "first-index" // a package of a private index is never taken from another index
	if r.Hashed {
		strategy = "unsafe-best-match" // a lock may have several indexes, and its hashes identify the files
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
		if len(file.lines) == 0 { // uv warns of an empty file
			continue
		}
		for _, line := range file.lines {
			if strings.ContainsAny(line, "\r\n\x00") {
				return nil, fmt.Errorf("the requirement %q has more than one line", requirement.Redact(line))
			}
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
		argv = append(argv, "-r", path)
		for _, extra := range project.Extras {
			argv = append(argv, "--extra="+extra)
		}
		for _, group := range project.Groups {
			argv = append(argv, "--group="+path+":"+group)
		}
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

// file makes a file in Work, maybe in a directory, that the builder can read, and returns its path. The builder owns
// Work: no link out of it is followed.
func (b *build) file(name string, content []byte) (path string, err error) {
	dir := filepath.Dir(name)
	err = errors.Join(b.root.MkdirAll(dir, 0o755), b.root.WriteFile(name, content, 0o644))
	if err == nil && dir != "." {
		err = b.root.Chmod(dir, 0o755) // whatever the umask is
	}
	if err == nil {
		err = b.root.Chmod(name, 0o644)
	}
	if err != nil {
		return "", fmt.Errorf("failed to write what uv reads: %w", err)
	}
	return filepath.Join(b.Work, name), nil
}

// environ returns uv's environment. Of this process's it has only the certificates to trust and the proxies.
func environ(work string) []string {
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"LANG=C.UTF-8", "LC_ALL=C.UTF-8",
		"HOME=" + work, "TMPDIR=" + work, "XDG_CONFIG_DIRS=" + work,
		"UV_HTTP_TIMEOUT=15",
	}
	names := []string{"SSL_CERT_FILE", "SSL_CERT_DIR"}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		names = append(names, name, strings.ToLower(name))
	}
	for _, name := range names {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// run runs a program to its end; out gets stdout and stderr.
func (b *build) run(ctx context.Context, out io.Writer, argv ...string) error {
	return program{
		as: b.As, argv: argv, env: b.env, dir: b.Work, writes: []string{b.Dir, b.Work}, stdout: out, stderr: out,
	}.run(ctx)
}

var errTooLarge = errors.New("the packages are too large")

// uv runs uv, without the node's configuration, and with a cache of this build. It ends uv when the build is larger
// than MaxSize.
func (b *build) uv(ctx context.Context, argv ...string) error {
	argv = slices.Concat([]string{b.with.Path}, argv, []string{"--no-config", "--no-python-downloads",
		"--color", "never", "--cache-dir", filepath.Join(b.Work, "cache")})
	running, end := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { b.watch(running, end) })
	var tail plain.Tail
	err := b.run(running, &tail, argv...)
	end(nil)
	watching.Wait()
	switch {
	case errors.Is(context.Cause(running), errTooLarge) || b.tooLarge(ctx):
		return &Error{Words: fmt.Sprintf("the packages take more than the %d MiB that an environment may take on this node",
			b.MaxSize>>20)}
	case err != nil:
		return b.explain(ctx, err, tail)
	}
	return nil
}

// watch ends ctx when a directory of the build is larger than MaxSize: the size of a package is unknown until it is
// unpacked.
func (b *build) watch(ctx context.Context, end context.CancelCauseFunc) {
	for ctx.Err() == nil {
		begun := time.Now()
		if b.tooLarge(ctx) {
			end(errTooLarge)
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(200*time.Millisecond, 9*time.Since(begun))): // it looks a tenth of the time at most
		}
	}
}

func (b *build) tooLarge(ctx context.Context) bool {
	return b.MaxSize > 0 && max(sizeOf(ctx, b.Dir), sizeOf(ctx, b.Work)) > b.MaxSize
}

// sizeOf is the size of the files in a directory, 0 if it does not exist. uv may change it meanwhile. It is incomplete
// when ctx ends.
func sizeOf(ctx context.Context, dir string) (size int64) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return ctx.Err() // errors of files are ignored: they may be removed meanwhile
	})
	return size
}

// bytecode compiles the packages, because tasks cannot write there. The sources do not change, so the interpreter need
// not check their hashes (PEP 552). Without site (-S) no code of the environment runs. A file that does not compile is
// not an error.
func (b *build) bytecode(ctx context.Context) error {
	_ = b.run(ctx, io.Discard, b.Python.Path, "-I", "-S", "-m", "compileall", "-q",
		"--invalidation-mode", "unchecked-hash", filepath.Join(b.Dir, "lib"))
	return ctx.Err()
}
