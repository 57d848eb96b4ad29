package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/internal/cache"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// golangciVersion is pinned, since each release finds something else.
const (
	golangciModule  = "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"
	golangciVersion = "v2.12.0"
)

// golangci runs golangci-lint over the modules, where the workspace says how.
func golangci(ctx context.Context, p *term.Printer, root string, modules []string) (err error) {
	config := filepath.Join(root, ".golangci.yml")
	if _, err := os.Stat(config); err != nil {
		return nil
	}
	program, err := golangciProgram(ctx, p)
	if err != nil {
		return err
	}
	config, err = filepath.Abs(config)
	if err != nil {
		return err
	}
	// what it remembers of one checkout it would say of another, by the other's paths
	env := append(goEnv(ctx, root), "GOLANGCI_LINT_CACHE="+filepath.Join(filepath.Dir(config), "bin", ".golangci-lint"))
	args := []string{"run", "--config", config, "--path-mode=abs", "--allow-parallel-runners", "--timeout=15m", "--"}
	for _, dir := range modules {
		pkgs, err := packages(ctx, dir)
		if err != nil {
			return err
		}
		if len(pkgs) > 0 {
			args = append(args, filepath.Join(dir, "..."))
		}
	}
	end := p.Step("golangci-lint, %d modules", len(modules))
	out, err := outputWith(ctx, env, root, program, args...)
	end(err, "nothing found")
	if err != nil {
		return fmt.Errorf("golangci-lint: %w\n%s", err, out)
	}
	return nil
}

// golangciProgram builds it once for each version and keeps it in the user's cache, so
// that later runs need no network.
func golangciProgram(ctx context.Context, p *term.Printer) (path string, err error) {
	dir, err := cache.Dir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "golangci-lint-"+golangciVersion)
	path = filepath.Join(dir, "golangci-lint")
	unlock, err := cache.Lock(ctx, dir+".lock", nil)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	end := p.Step("Building golangci-lint %s (once, some two minutes)", golangciVersion)
	defer func() { end(err, "%s", path) }()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	made, err := os.MkdirTemp(dir, "build-") // one that is killed leaves nothing under the name
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(made)
	cmd := exec.CommandContext(ctx, "go", "install", golangciModule+"@"+golangciVersion)
	cmd.Env = append(os.Environ(), "GOBIN="+made, "GOWORK=off", "GOFLAGS=", "GOOS=", "GOARCH=", "CGO_ENABLED=0")
	cmd.Dir = made
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("failed to build golangci-lint, which needs a Go proxy the first time: %w\n%s", err, out)
	}
	return path, os.Rename(filepath.Join(made, "golangci-lint"), path)
}
