// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/sandbox"
)

// build is one run of an installer.
type build struct {
	with Installer
	Request
	input   input
	access  index.Access
	sandbox *sandbox.Sandbox
	proxy   *index.Proxy
	env     []string
	site    string // where the interpreter looks for packages

	warnings []string
}

// begin prepares the sandbox, in which only the directories writable, and Downloads, can be written to; end undoes it.
func (i Installer) begin(r Request, writable ...string) (*build, error) {
	if r.AllowSdists {
		r.Downloads = "" // code of a package could change what later builds use
	}
	b := &build{with: i, Request: r, access: index.Access{Patterns: r.AllowedHosts}}
	if err := b.check(); err != nil {
		return nil, err
	}
	if err := b.prepare(); err != nil {
		return nil, err
	}
	if r.Downloads != "" {
		writable = append(writable, r.Downloads)
	}
	b.sandbox = sandbox.New(r.As, writable...)
	l, alone, err := b.sandbox.Listen()
	if err != nil {
		b.sandbox.Close()
		return nil, fmt.Errorf("failed to listen for the installer's proxy: %w", err)
	}
	b.proxy = index.NewProxy(l, &b.access, alone, r.Downloaded)
	b.env = environ(r.Work, b.proxy.URL)
	return b, nil
}

func (b *build) end() {
	b.sandbox.Close()
	b.proxy.Close()
}

// environ returns the installer's environment. Of this process's it has only the certificates to trust.
func environ(work, proxy string) []string {
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"LANG=C.UTF-8", "LC_ALL=C.UTF-8",
		"HOME=" + work, "TMPDIR=" + work, "XDG_CONFIG_DIRS=" + work,
		"PIP_CONFIG_FILE=/dev/null",
		"UV_HTTP_TIMEOUT=15",
		"NO_PROXY=", "no_proxy=",
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env = append(env, name+"="+proxy, strings.ToLower(name)+"="+proxy)
	}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// venvArgs is the command that makes the environment.
func (b *build) venvArgs() []string {
	if b.with.Name == "uv" {
		return b.uvVenv()
	}
	return []string{b.Python.Path, "-I", "-m", "venv", "--without-pip", b.Dir}
}

// installArgs is the command that installs the packages.
func (b *build) installArgs() ([]string, error) {
	if b.with.Name == "uv" {
		return b.uvInstall(), nil
	}
	return b.pipInstall()
}

// common are the options that uv pip install and pip install have alike.
func (b *build) common() []string {
	argv := []string{"-r", b.input.requirements}
	if b.input.constraints != "" {
		argv = append(argv, "-c", b.input.constraints)
	}
	if b.Requirements.Hashed {
		argv = append(argv, "--require-hashes")
	}
	if b.Requirements.Complete {
		argv = append(argv, "--no-deps")
	}
	if b.Sources.Offline {
		argv = append(argv, "--no-index")
	}
	return argv
}

// limits is a script that sets limits and runs a program: a process can set them only for itself. The unit of -f is 512
// bytes (POSIX). Shells name the limit of processes -p or -u.
const limits = `umask 022; ulimit -c 0
test "$1" = 0 || ulimit -f "$1" || exit
test "$2" = 0 || ulimit -p "$2" 2>/dev/null || ulimit -u "$2" || exit
shift 2; exec "$@"`

// run runs a program to its end; out gets stdout and stderr.
func (b *build) run(ctx context.Context, argv []string, out io.Writer) error {
	sh := []string{"/bin/sh", "-c", limits, "sh", fmt.Sprint(b.MaxSize / 512), fmt.Sprint(b.maxProcesses())}
	return b.sandbox.Run(ctx, sandbox.Program{
		Args: append(sh, argv...), Env: b.env, Dir: b.Work, Stdout: out, Stderr: out,
	})
}

// tool runs the installer. If it fails, the error is an *Error.
func (b *build) tool(ctx context.Context, argv []string) error {
	out := &output{access: &b.access}
	out.line = func(line string) {
		line = strings.TrimSpace(line)
		b.warned(line)
		if b.Progress != nil {
			b.Progress(line)
		}
	}
	watched, stop := b.watch(ctx)
	err := b.run(watched, argv, out)
	tooLarge := stop()
	out.end()
	switch {
	case tooLarge:
		return b.refused(TooLarge, "the packages take more than the %d MiB that an environment may take on this node",
			b.MaxSize>>20)
	case err != nil:
		return b.explain(ctx, err, out.lines)
	}
	return nil
}

// warned collects the first warnings: code of a package may write any number of them.
func (b *build) warned(line string) {
	const most, longest = 20, 500
	text, ok := strings.CutPrefix(line, "WARNING: ") // pip's level
	if !ok {
		text, ok = strings.CutPrefix(line, "warning: ") // uv's
	}
	if text = cut(text, longest); ok && len(b.warnings) < most && !slices.Contains(b.warnings, text) {
		b.warnings = append(b.warnings, text)
	}
}
