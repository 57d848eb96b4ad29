package build

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Plugin is one folder of plugins/.
type Plugin struct {
	Name   string // the folder's: "exec-lite"
	Dir    string
	Binary string // "nomad-driver-exec-lite" or "nomad-device-usb"
	Device bool   // a device plugin, which has libusb where it can; a driver is static
}

// Plugins lists the plugins of a checkout, in order of name. A folder without a
// program is not one (yet).
func Plugins(root string) ([]Plugin, error) {
	dirs, err := os.ReadDir(filepath.Join(root, "plugins"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to list the plugins: %w", err)
	}
	var plugins []Plugin
	for _, d := range dirs {
		dir := filepath.Join(root, "plugins", d.Name())
		program, device, err := inspect(dir)
		if err != nil {
			return nil, err
		}
		if !program {
			continue
		}
		kind := "driver"
		if device {
			kind = "device"
		}
		plugins = append(plugins, Plugin{
			Name: d.Name(), Dir: dir, Binary: "nomad-" + kind + "-" + d.Name(), Device: device,
		})
	}
	return plugins, nil
}

// Select returns the plugins with these names, or all where there are no names.
// A name may be the folder's or the binary's.
func Select(plugins []Plugin, names ...string) ([]Plugin, error) {
	if len(names) == 0 {
		return plugins, nil
	}
	var out []Plugin
	for _, n := range names {
		i := slices.IndexFunc(plugins, func(p Plugin) bool { return p.Name == n || p.Binary == n })
		if i < 0 {
			var have []string
			for _, p := range plugins {
				have = append(have, p.Name)
			}
			return nil, fmt.Errorf("there is no plugin %q; there are: %s", n, strings.Join(have, ", "))
		}
		out = append(out, plugins[i])
	}
	return out, nil
}

// inspect reads the import clauses of a folder: whether it is a program, and
// whether it serves devices, which it does through internal/core/device.
func inspect(dir string) (program, device bool, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return false, false, err
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		ast, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ImportsOnly)
		if err != nil {
			return false, false, fmt.Errorf("failed to read plugin: %w", err)
		}
		program = program || ast.Name.Name == "main"
		for _, i := range ast.Imports {
			device = device || strings.HasSuffix(strings.Trim(i.Path.Value, `"`), "/internal/core/device")
		}
	}
	return program, device, nil
}
