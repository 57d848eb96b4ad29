package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// Find returns the installer to use. want is "auto", "uv" or "pip", uv the configured program or
// empty. The error says what to install on the node.
func Find(ctx context.Context, want, uv string, as *syscall.Credential, found []interpreter.Interpreter) (Installer, error) {
	var why error
	switch want {
	case "auto", "uv":
		i, err := findUV(ctx, uv, as)
		if err == nil || want == "uv" {
			return i, err
		}
		if ctx.Err() != nil {
			return Installer{}, ctx.Err() // whether there is uv is not known
		}
		why = err
	case "pip":
	default:
		return Installer{}, fmt.Errorf("installer %q is none of auto, uv, pip", want)
	}
	for _, python := range found {
		if python.Pip != nil {
			return Installer{Name: "pip", Version: python.PipVersion, Python: python}, nil
		}
	}
	if len(found) == 0 {
		return Installer{}, errors.Join(why, errors.New("there is no pip, since there is no interpreter"))
	}
	return Installer{}, errors.Join(why, errors.New("no interpreter has pip: install python3-pip, or uv"))
}

// findUV returns the first uv that answers.
func findUV(ctx context.Context, configured string, as *syscall.Credential) (Installer, error) {
	candidates := []string{configured}
	if configured == "" {
		candidates = uvPlaces()
	}
	var why []string
	for _, path := range candidates {
		version, err := uvVersion(ctx, path, as)
		if err == nil {
			return Installer{Name: "uv", Version: version, UV: path}, nil
		}
		if configured != "" || !errors.Is(err, os.ErrNotExist) {
			why = append(why, fmt.Sprintf("%s: %v", path, err))
		}
	}
	if len(why) > 0 {
		return Installer{}, fmt.Errorf("no uv that the build user can run: %s", strings.Join(why, "; "))
	}
	return Installer{}, errors.New("there is no uv on the agent's PATH or where its installers put it: install it, or name it by the option uv")
}

// uvPlaces are the PATH and where uv's installers put it (docs.astral.sh/uv, installation).
func uvPlaces() []string {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	dirs = append(dirs, "/usr/local/bin", "/usr/bin")
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".local/bin"), filepath.Join(home, ".cargo/bin"))
	}
	dirs = append(dirs, "/opt/uv", "/opt/uv/bin")
	var places []string
	for _, dir := range dirs {
		if path := filepath.Join(dir, "uv"); filepath.IsAbs(dir) && !slices.Contains(places, path) {
			places = append(places, path)
		}
	}
	return places
}

// uvVersion asks a program whether it is uv.
func uvVersion(ctx context.Context, path string, as *syscall.Credential) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // it is quick, and the node may be overloaded
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "UV_NO_CONFIG=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Setpgid: true}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	version, _, _ := strings.Cut(rest, " ")
	if name != "uv" || version == "" {
		return "", fmt.Errorf("it is not uv: it answers %q to --version", clean(strings.TrimSpace(string(out))))
	}
	return version, nil
}
