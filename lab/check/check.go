// Package check runs what has to hold before a change goes in: formatting, vet,
// the tests of every module, and the end-to-end tests.
package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Modules lists the folders of the workspace's modules. `./...` in the root does
// not cross into other modules, so that whoever means all has to ask for each.
func Modules(ctx context.Context, root string) ([]string, error) {
	out, err := output(ctx, root, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, fmt.Errorf("failed to list the modules: %w", err)
	}
	return strings.Fields(out), nil
}

// Lint fails on files that gofmt would change, and on what go vet and golangci-lint
// find. It says what it does.
func Lint(ctx context.Context, root string) error {
	return lint(ctx, root, term.New(os.Stdout))
}

func lint(ctx context.Context, root string, p *term.Printer) error {
	modules, err := Modules(ctx, root)
	if err != nil {
		return err
	}
	end := p.Step("gofmt")
	err = format(ctx, root)
	end(err, "")
	if err != nil {
		return err
	}
	var errs []error
	end = p.Step("go vet")
	if _, err := os.Stat(filepath.Join(root, "magefile.go")); err == nil { // no package without its tag
		if out, err := output(ctx, root, "go", "vet", "-tags", "mage", "."); err != nil {
			errs = append(errs, fmt.Errorf("go vet of the magefile: %w\n%s", err, out))
		}
	}
	for _, dir := range modules {
		pkgs, err := packages(ctx, dir)
		if err != nil {
			return err
		}
		if len(pkgs) == 0 {
			continue
		}
		if out, err := outputWith(ctx, goEnv(ctx, root), dir, "go", "vet", "./..."); err != nil {
			errs = append(errs, fmt.Errorf("go vet in %s: %w\n%s", dir, err, out))
		}
	}
	end(errors.Join(errs...), "")
	return errors.Join(append(errs, golangci(ctx, p, root, modules))...)
}

func format(ctx context.Context, root string) error {
	var files []string
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "vendor" || name == "testdata") {
			return filepath.SkipDir
		}
		if !e.IsDir() && strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("failed to list Go files: %w", err)
	}
	out, err := output(ctx, ".", "gofmt", append([]string{"-l"}, files...)...)
	if err != nil {
		return fmt.Errorf("gofmt: %w\n%s", err, out)
	}
	if out != "" {
		return fmt.Errorf("gofmt would change these files; run gofmt -w on them:\n%s", out)
	}
	return nil
}

func packages(ctx context.Context, dir string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "./...")
	cmd.Dir = dir
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut // "matched no packages" is a warning on stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("failed to list the packages of %s: %w\n%s", dir, err, errOut.String())
	}
	return strings.Fields(out.String()), nil
}

// goEnv is the environment in which everything compiles, as the plugins are built:
// without cgo where a C library is missing.
func goEnv(ctx context.Context, root string) []string {
	if (build.Builder{Root: root}).Libusb(ctx) != nil {
		return append(os.Environ(), "CGO_ENABLED=0")
	}
	return os.Environ()
}

// output runs a command and returns its output, both streams, also with an error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	return outputWith(ctx, nil, dir, name, args...)
}

// outputWith runs it in an environment; nil is ours.
func outputWith(ctx context.Context, env []string, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Test runs the unit tests of every module and then the end-to-end tests, prints
// a line a package, and at the end one with the counts. It fails where a test
// failed, where none ran, and where one was skipped without a listed reason.
func Test(ctx context.Context, root string) error {
	allowed, err := skips()
	if err != nil {
		return err
	}
	return test(ctx, root, newReport(os.Stdout, allowed))
}

func test(ctx context.Context, root string, r *report) error {
	modules, err := Modules(ctx, root)
	if err != nil {
		return err
	}
	env := goEnv(ctx, root)
	var e2e []string
	var e2eDir string
	for _, dir := range modules {
		pkgs, err := packages(ctx, dir)
		if err != nil {
			return err
		}
		var units []string
		for _, p := range pkgs {
			if why := leavesOut(r.allowed, p); why != "" {
				r.leftOut(p, why)
				continue
			}
			if strings.Contains(p+"/", "/lab/e2e/") {
				e2e, e2eDir = append(e2e, p), dir
				continue
			}
			units = append(units, p)
		}
		if err := goTest(ctx, r, env, dir, units, "-timeout=20m"); err != nil {
			return err
		}
	}
	before := r.ran()
	if before == 0 {
		r.problem("no unit test ran")
	}
	fmt.Fprintln(r.w, "\nend to end, on a real agent:")
	// one package at a time: each has agents of its own and is timed
	if err := goTest(ctx, r, env, e2eDir, e2e, "-count=1", "-p=1", "-timeout=40m"); err != nil {
		return err
	}
	if r.ran() == before {
		r.problem("no end-to-end test ran")
	}
	return r.finish()
}

// goTest feeds `go test -json` to the report. A failing test is the report's
// affair; the error is for a go command that cannot run.
func goTest(ctx context.Context, r *report, env []string, dir string, pkgs []string, flags ...string) error {
	if len(pkgs) == 0 {
		return nil
	}
	args := append([]string{"test", "-json"}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkgs...)...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to run go test: %w", err)
	}
	rerr := r.read(out)
	io.Copy(io.Discard, out)
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if r.healthy() { // it failed and no event says why
			r.problem("go test in %s: %v", dir, err)
		}
		err = nil
	}
	return errors.Join(rerr, err)
}
