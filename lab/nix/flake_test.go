// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nix

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/build"
)

const root = "../.."

func needNix(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("nix"); err != nil {
		t.Skip("there is no nix")
	}
}

// checkout copies what the flake reads, and gives the programs of Nix a store of its own.
func checkout(t *testing.T) string {
	t.Helper()
	needNix(t)
	dir := t.TempDir()
	t.Cleanup(func() { // so that it can be removed: nothing in a store is writable
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, _ error) error {
			if e != nil && e.IsDir() {
				return os.Chmod(path, 0o755) //nolint:gosec // of the test's own
			}
			return nil
		})
	})
	for name, sub := range map[string]string{"NIX_STORE_DIR": "store", "NIX_STATE_DIR": "var", "NIX_LOG_DIR": "log",
		"XDG_CACHE_HOME": "cache"} {
		t.Setenv(name, filepath.Join(dir, "nix", sub))
	}
	repo := filepath.Join(dir, "outrider")
	for _, glob := range []string{"flake.*", "nix", "go.work*", "LICENSE", "NOTICE", "internal/core/go.mod",
		"plugins/*/go.mod", "plugins/*/main.go", "plugins/*/libusb"} {
		files, err := filepath.Glob(filepath.Join(root, glob))
		must.NoError(t, err)
		must.SliceNotEmpty(t, files, must.Sprint(glob))
		for _, file := range files {
			below, err := filepath.Rel(root, file)
			must.NoError(t, err)
			must.NoError(t, copyTree(file, filepath.Join(repo, below)))
		}
	}
	return repo
}

// flakeCheck evaluates every output for each system, on the stub.
func flakeCheck(t *testing.T, repo string) error {
	t.Helper()
	_, err := run(t.Context(), repo, "nix", "flake", "check", "--no-build", "--no-write-lock-file", "--no-use-registries",
		"--override-input", "nixpkgs", "path:"+repo+"/nix/stub", "path:"+repo)
	return err
}

func TestFlake_Evaluates(t *testing.T) {
	must.NoError(t, flakeCheck(t, checkout(t)))
	var formatter, overlay string // which Nix 2.8 leaves out
	must.NoError(t, Eval(t.Context(), root, "formatter.x86_64-linux.pname", &formatter))
	test.Eq(t, "nixfmt-tree", formatter)
	must.NoError(t, Eval(t.Context(), root, "overlaid.outrider.usb.meta.mainProgram", &overlay))
	test.Eq(t, "nomad-device-usb", overlay)
}

// The stub is of use only if it finds mistakes.
func TestFlake_MistakesAreFound(t *testing.T) {
	repo := checkout(t)
	for _, tc := range []struct{ name, file, old, planted, err string }{
		{"syntax", "flake.nix", "inherit (nixpkgs) lib;", "inherit (nixpkgs) lib", "syntax error"},
		{"package of the shell", "flake.nix", "umockdev", "umockdevv", "umockdevv"},
		{"dependency of a build", "nix/packages.nix", "pkgs.libusb1", "pkgs.libusb2", "attribute 'libusb2' missing"},
		{"argument of a build", "nix/packages.nix", "subPackages =", "subPackage =", "subPackage"},
		{"licence", "nix/packages.nix", "mpl20", "mpl2", "attribute 'mpl2' missing"},
		{"file of the source", "nix/packages.nix", `"/go.work.sum"`, `"/go.work.sums"`, "go.work.sums does not exist"},
		{"unfree package", "nix/packages.nix", "pkgs.libusb1", "pkgs.nomad", "nomad has an unfree license"},
		{"system", "flake.nix", `"aarch64-linux"`, `"riscv64-linux"`, "attribute 'riscv64-linux' missing"},
		{"shape of an output", "flake.nix", "pkgs.mkShell { packages = tools pkgs; }", "tools pkgs", "is not a derivation"},
		{"option of NixOS", "nix/module.nix", "extraSettingsPlugins =", "extraSettingsPlugin =",
			"`services.nomad.extraSettingsPlugin' does not exist"},
		{"value of an option", "nix/module.nix", "mkDefault false", `mkDefault "no"`,
			"`services.nomad.dropPrivileges' is not of type `boolean'"},
		{"second face of a plugin", "nix/module.nix", "path =", "paths =", "anonymous function"},
		{"right of the agent", "nix/module.nix", "mkDefault false", "mkDefault true", "runs as root"},
		{"plugin of the VM test", "nix/test.nix", "python.enable", "pyhton.enable",
			"`services.outrider.pyhton' does not exist"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(repo, tc.file)
			text, err := os.ReadFile(file)
			must.NoError(t, err)
			must.StrContains(t, string(text), tc.old)
			changed := strings.Replace(string(text), tc.old, tc.planted, 1)
			must.NoError(t, os.WriteFile(file, []byte(changed), 0o644))
			defer func() { must.NoError(t, os.WriteFile(file, text, 0o644)) }()
			err = flakeCheck(t, repo)
			must.Error(t, err)
			test.StrContains(t, err.Error(), tc.err)
		})
	}
}

func TestFlake_IsLocked(t *testing.T) {
	repo := checkout(t)
	out, err := run(t.Context(), repo, "nix", "flake", "metadata", "--json", "--no-update-lock-file", "path:"+repo)
	must.NoError(t, err, must.Sprint("flake.lock does not fit to the inputs of flake.nix"))
	var metadata struct {
		Locks struct {
			Nodes map[string]struct{ Locked struct{ Rev, NarHash string } }
		}
	}
	must.NoError(t, json.Unmarshal([]byte(out), &metadata))
	locked := metadata.Locks.Nodes["nixpkgs"].Locked
	test.RegexMatch(t, regexp.MustCompile(`^[0-9a-f]{40}$`), locked.Rev)
	test.RegexMatch(t, regexp.MustCompile(`^sha256-.{44}$`), locked.NarHash)
}

func TestFlake_HasThePluginsOfTheLab(t *testing.T) {
	needNix(t)
	var has map[string]struct {
		Binary     string
		HostVolume string // null is empty
		Libusb     bool
	}
	must.NoError(t, Eval(t.Context(), root, "plugins", &has))
	plugins, err := build.Plugins(root)
	must.NoError(t, err)
	for _, p := range plugins {
		test.Eq(t, p.Binary, has[p.Name].Binary, test.Sprint(p.Name))
		test.Eq(t, p.HostVolume, has[p.Name].HostVolume, test.Sprint(p.Name))
		test.Eq(t, p.Libusb, has[p.Name].Libusb, test.Sprint(p.Name))
		delete(has, p.Name)
	}
	test.MapEmpty(t, has)
}
