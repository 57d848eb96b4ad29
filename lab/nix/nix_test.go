// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nix

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
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
		t.Skip("nix is not installed")
	}
}

func TestUpdateHash_WritesTheHashOfTheCheckout(t *testing.T) {
	needNix(t)
	dir := t.TempDir()
	for _, name := range []string{"internal/core", "plugins", "nix"} {
		must.NoError(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(root, name))))
	}
	for _, name := range []string{"go.work", "go.work.sum"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	file := filepath.Join(dir, "nix/packages.nix")
	want, err := os.ReadFile(file)
	must.NoError(t, err)
	old := vendorHash.ReplaceAll(want, []byte("sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="))
	must.NoError(t, os.WriteFile(file, old, 0o644))

	must.NoError(t, UpdateHash(t.Context(), dir))

	got, err := os.ReadFile(file)
	must.NoError(t, err)
	must.Eq(t, string(want), string(got), must.Sprint("the packages that plugins import have changed: "+
		"run `go tool mage nix:hash`, which writes their hash to nix/packages.nix"))
}

func TestFlake_IsValidNix(t *testing.T) {
	needNix(t)
	files, err := filepath.Glob(root + "/nix/*.nix")
	must.NoError(t, err)
	must.Greater(t, 3, len(files))
	files = append(files, root+"/flake.nix")
	out, err := exec.Command("nix-instantiate", append([]string{"--parse"}, files...)...).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
}

// The page shows nix/example.nix, which nix/check.nix evaluates if nixpkgs is available.
func TestPage_ShowsTheExampleThatIsChecked(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/develop/nix.md")
	must.NoError(t, err)
	file, err := os.ReadFile(root + "/nix/example.nix")
	must.NoError(t, err)
	_, example, found := strings.Cut(string(file), "\n\n") // without the header
	must.True(t, found)
	must.StrContains(t, string(page), "```nix\n"+example+"```\n")
}

func TestFlake_HasThePluginsOfTheLab(t *testing.T) {
	needNix(t)
	// dummy:// is a store that writes nothing
	cmd := exec.Command("nix-instantiate", "--store", "dummy://", "--eval", "--strict", "--json", root+"/nix/plugins.nix")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must.NoError(t, err)
	var has map[string]struct {
		Binary     string
		HostVolume string // empty: null in Nix
		Libusb     bool
	}
	must.NoError(t, json.Unmarshal(out, &has))
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
