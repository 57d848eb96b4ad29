// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"gopkg.in/yaml.v3"

	"github.com/outrider-dev/outrider/lab/build"
)

func hello() *settings {
	return &settings{Plugin: build.Plugin{Name: "hello", Binary: "nomad-driver-hello"}, Version: "0.1.0",
		Ref: "plugins/hello/v0.1.0"}
}

// An rpm lists its own directories, so they are removed with it.
func TestYAML_HasThePluginsDependencies(t *testing.T) {
	c := hello()
	c.Name, c.Scratch, c.HostVolume, c.Archs = "remote", "x", "volumes", Archs
	must.NoError(t, c.write(t.TempDir(), map[string]string{"NOTICE": "n", "example/a.hcl": "", "example/b/c/d.whl": "",
		"example/b/e.py": ""}))
	text, err := c.yaml()
	must.NoError(t, err)
	var got struct {
		Builds []struct{ Goarch []string }
		Nfpms  []struct {
			Overrides map[string]struct{ Dependencies []string }
			Contents  []struct{ Src, Dst, Type, Packager string }
		}
	}
	must.NoError(t, yaml.Unmarshal(text, &got), must.Sprint(string(text)))
	test.Eq(t, Archs, got.Builds[0].Goarch)
	test.Eq(t, []string{"openssh-client"}, got.Nfpms[0].Overrides["deb"].Dependencies)
	test.Eq(t, []string{"openssh-clients"}, got.Nfpms[0].Overrides["rpm"].Dependencies)
	dirs, links, files := map[string]bool{}, map[string]string{}, map[string]string{}
	for _, content := range got.Nfpms[0].Contents {
		switch content.Type {
		case "dir":
			test.Eq(t, "rpm", content.Packager, test.Sprint("dpkg removes directories by itself"))
			dirs[filepath.Clean(content.Dst)] = true
		case "symlink":
			links[content.Dst] = content.Src
		default:
			files[content.Dst] = content.Src
		}
	}
	const stage = "dist/x/stage/"
	const doc, data, binary = "/usr/share/doc/nomad-driver-hello", "/opt/nomad/data", "/usr/bin/nomad-driver-hello"
	test.Eq(t, map[string]bool{data + "/plugins": true, data + "/host_volume_plugins": true, doc: true,
		doc + "/example": true, doc + "/example/b": true, doc + "/example/b/c": true}, dirs)
	test.Eq(t, map[string]string{data + "/plugins/nomad-driver-hello": binary,
		data + "/host_volume_plugins/volumes": binary, doc + "/copyright": "NOTICE"}, links)
	test.Eq(t, map[string]string{
		"/etc/nomad.d/nomad-driver-hello.hcl": "dist/x/block.hcl", doc + "/NOTICE": stage + "NOTICE",
		doc + "/example/a.hcl":     stage + "example/a.hcl",
		doc + "/example/b/c/d.whl": stage + "example/b/c/d.whl",
		doc + "/example/b/e.py":    stage + "example/b/e.py"}, files)
}

func TestRelink_PointsIntoTheZipOrToTheSite(t *testing.T) {
	const site = "https://github.com/outrider-dev/outrider/blob/plugins/hello/v0.1.0/"
	for link, want := range map[string]string{
		"[a](../explain/security.md)":            "[a](" + site + "docs/explain/security.md)",
		"[a](usb.md#install)":                    "[a](" + site + "docs/plugins/usb.md#install)",
		"[a](../../LICENSE)":                     "[a](" + site + "LICENSE)",
		"[a](../../plugins/hello/example)":       "[a](example)",
		"[a](../../plugins/hello/example/x.hcl)": "[a](example/x.hcl)",
		"[a](../reference/hello.md#x)":           "[a](OPTIONS.md#x)",
		"[a](../reference/driver.md)":            "[a](" + site + "docs/reference/driver.md)",
		"[a](https://go.dev/a)":                  "[a](https://go.dev/a)",
		"[a](#install)":                          "[a](#install)",
	} {
		test.Eq(t, want, hello().relink(link, "docs/plugins"), test.Sprint(link))
	}
	test.Eq(t, "[a](README.md#install)", hello().relink("[a](../plugins/hello.md#install)", "docs/reference"))
}

func TestStamp_MatchesTheVersionReportOfABinary(t *testing.T) {
	for printed, want := range map[string][]string{
		"nomad-driver-x 0.1.0\nof commit 01ab (2026-11-29T09:02:31Z), by go1.26.8": {"0.1.0", "", "01ab"},
		"nomad-driver-x 0.1.0-rc.1+dirty (untagged build, with changes)\nof commit 01ab (": {
			"0.1.0-rc.1+dirty", " (untagged build, with changes)", "01ab"},
	} {
		found := stamp.FindStringSubmatch(printed)
		must.SliceLen(t, 4, found, must.Sprint(printed))
		test.Eq(t, want, found[1:])
	}
	test.Nil(t, stamp.FindStringSubmatch("nomad-driver-x 0.0.0-dev (untagged build)\nof an unknown commit, by go1.26.8"))
}

func TestLicenceFiles_FindsFilesOfTheFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"LICENSE": "\nfree\n", "PATENTS": "a grant", "license.go": "package x",
		"Copying.txt": "too", "licenses/x": "not here", "README.md": "license"} {
		must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, "sub", name)), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(dir, "sub", name), []byte(text), 0o644))
	}
	found := map[string]string{}
	must.NoError(t, licenceFiles(dir, filepath.Join(dir, "sub"), found))
	test.Eq(t, map[string]string{"sub/LICENSE": "free", "sub/PATENTS": "a grant", "sub/Copying.txt": "too"}, found)
}

// The release workflow takes the text of the release's page from this section of the changelog.
func TestChangelog_ExistsForEveryPlugin(t *testing.T) {
	plugins, err := build.Plugins("../..")
	must.NoError(t, err)
	must.SliceNotEmpty(t, plugins)
	for _, p := range plugins {
		text, err := os.ReadFile(filepath.Join(p.Dir, "CHANGELOG.md"))
		must.NoError(t, err)
		test.StrContains(t, string(text), "\n## Unreleased\n", test.Sprint(p.Name))
	}
}

func TestOptions_RefuseAnUnknownPlugin(t *testing.T) {
	_, err := Build(t.Context(), Options{Root: "../..", Plugin: "execlite"})
	test.ErrorContains(t, err, `plugin "execlite" does not exist`)
}
