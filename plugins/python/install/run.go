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

	"github.com/outrider-dev/outrider/plugins/python/process"
)

// build is one run of uv.
type build struct {
	with Installer
	Request
	root      *os.Root // of Work
	input     input
	downloads string // uv's cache, "" for none
	env       []string
	site      string // where the interpreter looks for packages

	warnings []string
}

// begin opens Work; end closes it.
func (i Installer) begin(r Request) (*build, error) {
	root, err := os.OpenRoot(r.Work)
	if err != nil {
		return nil, fmt.Errorf("failed to open the directory of the build: %w", err)
	}
	return &build{with: i, Request: r, root: root, env: environ(r.Work)}, nil
}

func (b *build) end() { _ = b.root.Close() }

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
func (b *build) run(ctx context.Context, argv []string, out io.Writer) error {
	return process.Program{As: b.As, Args: argv, Env: b.env, Dir: b.Work, Stdout: out, Stderr: out}.Run(ctx)
}

// tool runs uv. If it fails, the error is an *Error.
func (b *build) tool(ctx context.Context, argv []string) error {
	out := &output{}
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

// warned collects the first warnings.
func (b *build) warned(line string) {
	const most, longest = 20, 500
	text, ok := strings.CutPrefix(line, "warning: ")
	if text = cut(text, longest); ok && len(b.warnings) < most && !slices.Contains(b.warnings, text) {
		b.warnings = append(b.warnings, text)
	}
}
