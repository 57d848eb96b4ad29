package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/sandbox"
)

// build is one Install.
type build struct {
	with Installer
	Request
	source  *source
	sandbox *sandbox.Sandbox
	egress  *egress
	bound   *bound
	env     []string
	site    string // where the interpreter looks for packages

	warnings []string
}

// Install makes the environment: virtual environment, packages, bytecode. The files are
// still their builder's. When ctx ends, or this process is killed, the installer and all it started is
// killed too. The error is an *Error where the installer failed.
func (i Installer) Install(ctx context.Context, r Request) (*Result, error) {
	begun := time.Now()
	if err := i.refuseSources(&r); err != nil {
		return nil, err
	}
	if err := r.makeDir(); err != nil {
		return nil, err
	}
	b, err := i.begin(r, r.Dir, r.Work)
	if err != nil {
		return nil, err
	}
	defer b.end()
	if err := b.venv(ctx); err != nil {
		return nil, err
	}
	made, err := b.snapshot()
	if err != nil {
		return nil, err
	}
	if b.site, err = sitePackages(b.Dir); err != nil {
		return nil, err
	}
	if err := b.packages(ctx); err != nil {
		return nil, err
	}
	if err := b.verify(made); err != nil {
		return nil, err
	}
	if err := b.relocate(); err != nil {
		return nil, err
	}
	if err := b.bytecode(ctx); err != nil {
		return nil, err
	}
	packages, err := installed(b.site)
	if err != nil {
		return nil, err
	}
	return &Result{Packages: packages, Warnings: b.warnings, Took: time.Since(begun)}, nil
}

// refuseSources finds packages that are named by the URL of no wheel. (uv would refuse them itself.)
func (i Installer) refuseSources(r *Request) error {
	if r.AllowSdists {
		return nil
	}
	for _, raw := range r.Requirements.URLs {
		u, err := url.Parse(raw)
		if err != nil {
			return fmt.Errorf("failed to read the URL of a requirement: %w", withoutURL(err))
		}
		if !strings.HasSuffix(u.Path, ".whl") {
			u.User, u.RawQuery, u.Fragment = nil, "", "" // which may be secret
			return &Error{Cause: NoWheel, Tool: i.Tool(r.Python), Words: fmt.Sprintf(
				"%s is no wheel, and this node builds no packages from source (allow_sdists)", clean(u.String()))}
		}
	}
	return nil
}

// makeDir makes the environment's directory itself, so that the installer needs no right to write beside it.
func (r *Request) makeDir() error {
	if err := os.Mkdir(r.Dir, 0o755); err != nil {
		return fmt.Errorf("failed to make the environment's directory: %w", err)
	}
	return r.give(r.Dir)
}

// give makes a directory the builder's.
func (r *Request) give(dir string) error {
	if r.As == nil {
		return nil
	}
	if err := os.Lchown(dir, int(r.As.Uid), int(r.As.Gid)); err != nil {
		return fmt.Errorf("failed to give a directory to the user that builds: %w", err)
	}
	return nil
}

// begin prepares what the installer runs in, where only the directories writable (and Downloads) are; end undoes it.
func (i Installer) begin(r Request, writable ...string) (*build, error) {
	if r.AllowSdists {
		r.Downloads = "" // a package's code could change what the next environment is made of
	}
	b := &build{with: i, Request: r}
	var err error
	if b.source, err = newSource(i.Name, &r); err != nil {
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
	b.egress = newEgress(l, b.source.allowed, alone, r.Downloaded)
	b.env = environ(r.Work, b.egress.URL)
	b.bound = newBound(&r)
	return b, nil
}

func (b *build) end() {
	b.sandbox.Close()
	b.egress.Close()
	b.bound.end()
}

// environ is all that an installer sees of this process's environment: nothing, but for the certificates to trust.
func environ(work, proxy string) []string {
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin",
		"LANG=C.UTF-8", "LC_ALL=C.UTF-8",
		"HOME=" + work, "TMPDIR=" + work,
		"XDG_CACHE_HOME=" + filepath.Join(work, "cache"),
		"XDG_CONFIG_HOME=" + filepath.Join(work, "config"),
		"XDG_CONFIG_DIRS=" + filepath.Join(work, "config"),
		"XDG_DATA_HOME=" + filepath.Join(work, "data"),
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

func (b *build) venv(ctx context.Context) error {
	if b.with.Name == "uv" {
		return b.tool(ctx, b.uvVenv())
	}
	return b.tool(ctx, b.pipVenv())
}

func (b *build) packages(ctx context.Context) error {
	if b.Requirements.Empty() {
		return nil
	}
	if b.with.Name == "uv" {
		return b.tool(ctx, b.uvInstall())
	}
	argv, err := b.pipInstall(ctx)
	if err != nil {
		return err
	}
	return b.tool(ctx, argv)
}

// common are the options that uv pip install and pip install have alike.
func (b *build) common() []string {
	var argv []string
	if b.source.constraints != "" {
		argv = append(argv, "-c", b.source.constraints)
	}
	if b.Requirements.Hashed {
		argv = append(argv, "--require-hashes")
	}
	if b.Requirements.Complete {
		argv = append(argv, "--no-deps")
	}
	if b.Indexes.Offline {
		argv = append(argv, "--no-index")
	}
	return argv
}

// limits is sh's part: these are a process's, so this process can't set them for another before it
// runs, and without CAP_SYS_RESOURCE not after either. The unit of -f is 512 bytes (POSIX).
const limits = `umask 022; ulimit -c 0; test "$1" = 0 || ulimit -f "$1"; shift; exec "$@"`

// run runs a program to its end; out gets both of its outputs.
func (b *build) run(ctx context.Context, argv []string, out io.Writer) error {
	return b.sandbox.Run(ctx, sandbox.Program{
		Args: append([]string{"/bin/sh", "-c", limits, "sh", fmt.Sprint(b.MaxSize / 512)}, argv...),
		Env:  b.env, Dir: b.Work, Stdout: out, Stderr: out,
	})
}

// secrets are not to be seen in what the installer says.
func (b *build) secrets() []string {
	if b.egress.secret == "" {
		return b.source.secrets
	}
	return append(slices.Clone(b.source.secrets), b.egress.secret)
}

// tool runs the installer and makes its failure an *Error.
func (b *build) tool(ctx context.Context, argv []string) error {
	out := &output{secrets: b.secrets()}
	out.line = func(line string) {
		line = strings.TrimSpace(line)
		b.warned(line)
		if b.Progress != nil {
			b.Progress(line)
		}
	}
	watched, stop := b.bound.watch(ctx)
	err := b.run(watched, argv, out)
	grown := stop()
	out.end()
	switch {
	case errors.Is(grown, errTooLarge):
		return b.tooLarge()
	case grown != nil:
		return b.tooLargeTogether()
	case err != nil:
		return b.explain(ctx, err, out.lines)
	}
	return nil
}

// warned keeps the first warnings: a package's code may write any number of them.
func (b *build) warned(line string) {
	const most, longest = 20, 500
	text, ok := cutLevel(line)
	if text = cut(text, longest); ok && len(b.warnings) < most && !slices.Contains(b.warnings, text) {
		b.warnings = append(b.warnings, text)
	}
}

// cutLevel is a warning without the word that pip, or uv, marks it by.
func cutLevel(line string) (text string, ok bool) {
	if text, ok = strings.CutPrefix(line, "WARNING: "); !ok {
		text, ok = strings.CutPrefix(line, "warning: ")
	}
	return text, ok
}
