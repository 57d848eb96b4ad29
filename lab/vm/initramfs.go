package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cavaliergopher/cpio"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// bootModules are what the guest needs before it has the host's files.
var bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// initramfs makes the archive that the kernel starts from: the guest's program,
// the modules in the order to load them in, and the configuration.
func initramfs(ctx context.Context, k kernel) ([]byte, error) {
	program, err := buildGuest(ctx)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]string{"modules": k.modules()})
	if err != nil {
		return nil, err
	}
	modules, err := dependencies(k, bootModules)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := cpio.NewWriter(&b)
	add := func(name string, mode cpio.FileMode, data []byte) {
		if err == nil {
			err = w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
	}
	add("init", cpio.TypeReg|0o755, program)
	add("config.json", cpio.TypeReg|0o644, config)
	add("modules", cpio.TypeDir|0o755, nil)
	for i, m := range modules {
		data, rerr := os.ReadFile(m)
		if rerr != nil {
			return nil, fmt.Errorf("failed to read a module: %w", rerr)
		}
		add(fmt.Sprintf("modules/%02d-%s", i, filepath.Base(m)), cpio.TypeReg|0o644, data)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("failed to make the initramfs: %w", err)
	}
	return b.Bytes(), nil
}

// dependencies are the files of the modules and of what they need, in the order
// to load them in. What is built into the kernel has no file.
func dependencies(k kernel, names []string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(k.modules(), "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("failed to read the kernel's modules: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(k.modules(), "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("failed to read the kernel's modules: %w", err)
	}
	needs := map[string][]string{} // a module's name -> its file and those it needs, the deepest last (depmod(8))
	for line := range strings.Lines(string(text)) {
		file, deps, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[moduleName(file)] = append([]string{file}, strings.Fields(deps)...)
	}
	for line := range strings.Lines(string(builtin)) {
		needs[moduleName(strings.TrimSpace(line))] = []string{}
	}
	var files []string
	have := map[string]bool{}
	for _, name := range names {
		all, ok := needs[name]
		if !ok {
			return nil, fmt.Errorf("the kernel %s has no module %s", k.release, name)
		}
		for i := len(all) - 1; i >= 0; i-- {
			if !have[all[i]] {
				have[all[i]] = true
				files = append(files, filepath.Join(k.modules(), all[i]))
			}
		}
	}
	return files, nil
}

// moduleName is "virtio_pci" for kernel/drivers/virtio/virtio-pci.ko.xz.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// buildGuest builds the guest's program. What is up to date is left to the go command.
func buildGuest(ctx context.Context) ([]byte, error) {
	root, err := build.Root(".")
	if err != nil {
		return nil, err
	}
	dir, err := cache.Dir()
	if err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "vm", "guest")
	unlock, err := cache.Lock(ctx, out+".lock", nil)
	if err != nil {
		return nil, err
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, "./vm/guest")
	cmd.Dir = filepath.Join(root, "lab")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("failed to build the VM's first program: %w: %s", err, bytes.TrimSpace(text))
	}
	return os.ReadFile(out)
}
