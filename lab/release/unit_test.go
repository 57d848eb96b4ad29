// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/build"
)

func TestPackageVersion_SortsBelowTheRelease(t *testing.T) {
	for version, want := range map[string]string{
		"0.1.0":                                  "0.1.0",
		"0.2.0-rc.1":                             "0.2.0~rc.1",
		"0.0.0-20261123001839-0123456789ab":      "0.0.0~20261123001839.0123456789ab",
		"0.2.1-0.20261123001839-0123456789ab":    "0.2.1~0.20261123001839.0123456789ab",
		"0.0.0-20261123001839-01234567+dirty":    "0.0.0~20261123001839.01234567+dirty",
		"0.2.0-rc-1.0.20261123001839-0123+dirty": "0.2.0~rc.1.0.20261123001839.0123+dirty",
	} {
		test.Eq(t, want, packageVersion(version), test.Sprint(version))
	}
}

// write makes a folder with files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

const mit = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:
The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.
THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

func TestLicenseOf_IsThatOfThePackage(t *testing.T) {
	const busl = "Notice\n\nBusiness Source License 1.1\n\nTerms\n"
	module := write(t, map[string]string{
		"LICENSE":             busl,
		"PATENTS":             "a grant",
		"license.go":          "package x\n",
		"plain/p.go":          "package p\n",
		"free/License.txt":    "Copyright someone\n\n" + mit,
		"free/below/b.go":     "package b\n",
		"free/said/s.go":      "// SPDX-License-Identifier: BUSL-1.1\n\npackage s\n",
		"free/said/other.go":  "// SPDX-License-Identifier: Apache-2.0 OR MIT\n\npackage s\n",
		"free/said/README.md": "SPDX-License-Identifier: ISC\n",
	})
	for dir, want := range map[string]struct {
		sources []string
		license string
		texts   int
	}{
		"plain":      {[]string{"p.go"}, "BUSL-1.1", 2},
		"free/below": {[]string{"b.go"}, "MIT", 3},
		"free/said":  {[]string{"s.go", "other.go"}, "(Apache-2.0 OR MIT) AND BUSL-1.1", 3},
		".":          {[]string{"license.go"}, "BUSL-1.1", 2},
	} {
		got, err := licenseOf(module, filepath.Join(module, dir), want.sources)
		must.NoError(t, err, must.Sprint(dir))
		test.Eq(t, want.license, got.String(), test.Sprint(dir))
		test.SliceLen(t, want.texts, got.texts, test.Sprint(dir))
	}
}

func TestLicenseOf_RefusesWhatItDoesNotKnow(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"there is no licence":      {"x.go": "package x\n"},
		"the licence is not known": {"x.go": "package x\n", "LICENSE": "Ask me.\n"},
	} {
		module := write(t, files)
		_, err := licenseOf(module, module, []string{"x.go"})
		test.ErrorContains(t, err, want)
	}
}

func tagged() *artefact {
	return &artefact{binary: binary{
		plugin: build.Plugin{Name: "hello", Binary: "nomad-driver-hello"}, arch: "amd64",
		info: &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "0123"}, {Key: "vcs.modified", Value: "false"}}},
	}}
}

func TestContents_HaveEachDirectoryOfTheirOwnOnce(t *testing.T) {
	a := tagged()
	a.scratch = t.TempDir()
	a.documents = []file{{name: "NOTICE"}, {name: "example/a.hcl"}, {name: "example/b/c/d.whl"}, {name: "example/b/e.py"}}
	contents, err := a.contents()
	must.NoError(t, err)
	var dirs []string
	for _, c := range contents {
		if c.Type == "dir" {
			test.Eq(t, "rpm", c.Packager, test.Sprint("dpkg removes directories by itself"))
			dirs = append(dirs, c.Dst)
		}
	}
	const doc = "/usr/share/doc/nomad-driver-hello"
	test.Eq(t, []string{pluginDir, doc, doc + "/example", doc + "/example/b", doc + "/example/b/c"}, dirs)

	a.documents, a.plugin.HostVolume = nil, "volumes"
	contents, err = a.contents()
	must.NoError(t, err)
	test.True(t, slices.ContainsFunc(contents, func(c nfpmContent) bool {
		return c.Type == "symlink" && c.Src == "/usr/bin/nomad-driver-hello" && c.Dst == hostVolumeDir+"/volumes"
	}))
	test.True(t, slices.ContainsFunc(contents, func(c nfpmContent) bool {
		return c.Type == "dir" && c.Dst == hostVolumeDir
	}))
}

func TestReadme_LinksLeadSomewhere(t *testing.T) {
	const site = "https://github.com/outrider-dev/outrider/blob/plugins/hello/v0.1.0/"
	for link, want := range map[string]string{
		"[a](security.md)":                    "[a](" + site + "docs/security.md)",
		"[a](usb.md#install)":                 "[a](" + site + "docs/usb.md#install)",
		"[a](../LICENSE)":                     "[a](" + site + "LICENSE)",
		"[a](../plugins/hello/example)":       "[a](example)",
		"[a](../plugins/hello/example/x.hcl)": "[a](example/x.hcl)",
		"[a](https://go.dev/a)":               "[a](https://go.dev/a)",
		"[a](#install)":                       "[a](#install)",
	} {
		test.Eq(t, want, string(tagged().readme([]byte(link))), test.Sprint(link))
	}
	a := tagged()
	a.info.Main.Version = "v0.0.0-20261123001839-0123456789ab"
	test.Eq(t, "[a]("+Project+"/blob/0123/docs/b.md)", string(a.readme([]byte("[a](b.md)"))))
}

func TestSums_FindAFlippedByte(t *testing.T) {
	dir := write(t, map[string]string{"a_0.1.0.zip": "first", "b-0.1.0.rpm": "second"})
	must.NoError(t, writeSums(dir))
	flipEach(t, dir)
}

// flipEach flips a byte of each file that has a checksum, and runs the command of the documentation where it was
// downloaded to, alone.
func flipEach(t *testing.T, dir string) {
	t.Helper()
	names, err := listed(dir)
	must.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(dir, sumsFile))
	must.NoError(t, err)
	for _, name := range names[:len(names)-1] {
		text, err := os.ReadFile(filepath.Join(dir, name))
		must.NoError(t, err)
		download := write(t, map[string]string{sumsFile: string(sums), name: string(text)})
		check := func() (string, error) {
			cmd := exec.Command("sha256sum", "--check", "--ignore-missing", sumsFile)
			cmd.Dir, cmd.Env = download, append(os.Environ(), "LC_ALL=C")
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		out, err := check()
		must.NoError(t, err, must.Sprint(out))
		test.Eq(t, name+": OK\n", out)
		text[len(text)/2] ^= 1
		must.NoError(t, os.WriteFile(filepath.Join(download, name), text, 0o644))
		out, err = check()
		test.Error(t, err, test.Sprint(name))
		test.StrContains(t, out, name+": FAILED")
		must.NoError(t, os.RemoveAll(download))
	}
}

func TestArchive_TellsWhatDiffers(t *testing.T) {
	exe, err := os.Executable()
	must.NoError(t, err)
	program, err := os.ReadFile(exe)
	must.NoError(t, err)
	of := func(raw string, files map[string]string) archive {
		a := archive{raw: []byte(raw), files: map[string][]byte{}}
		for name, text := range files {
			a.files[name] = []byte(text)
		}
		return a
	}
	built := of("1", map[string]string{"x": string(program), "NOTICE": "n", "README.md": "r"})
	test.NoError(t, built.compare(built, "x.zip"))
	err = of("2", map[string]string{"x": string(program) + "!", "NOTICE": "m", "extra": "e"}).compare(built, "x.zip")
	for _, want := range []string{"it is not the x.zip that this commit gives", "NOTICE differs\n", "README.md is missing",
		"extra should not be in it", "x differs, though it claims the same build"} {
		test.ErrorContains(t, err, want)
	}
	err = of("2", map[string]string{"x": string(program), "NOTICE": "n", "README.md": "r"}).compare(built, "x.zip")
	test.ErrorContains(t, err, "packed by something else")
}

func TestNotes_AreTheChangelogsSection(t *testing.T) {
	const changelog = `# Changelog of hello

See [this](https://keepachangelog.com).

## Unreleased

### Fixed

- A thing, see [page](../../docs/hello.md#a).

## [0.2.0] - 2026-12-02

### Added

- More.

## 0.1.1 - 2026-12-01

Nothing to see.

## 0.1.0 - 2026-11-30

- The first.
`
	root := write(t, map[string]string{"go.work": "go 1.26\n", "plugins/hello/go.mod": "module x\n",
		"plugins/hello/CHANGELOG.md": changelog})
	of := func(version string) (string, error) { return Notes(Options{Root: root, Plugin: "hello"}, version) }
	for version, want := range map[string]string{
		"": "### Fixed\n\n- A thing, see [page](" + Project + "/blob/HEAD/docs/hello.md#a).\n\n" +
			"[Documentation](" + Project + "/blob/HEAD/docs/hello.md), " +
			"[all changes since 0.2.0](" + Project + "/compare/plugins/hello/v0.2.0...HEAD)\n",
		"v0.2.0": "### Added\n\n- More.\n\n[Documentation](" + Project + "/blob/plugins/hello/v0.2.0/docs/hello.md), " +
			"[all changes since 0.1.1](" + Project + "/compare/plugins/hello/v0.1.1...plugins/hello/v0.2.0)\n",
		"0.1.0": "- The first.\n\n[Documentation](" + Project + "/blob/plugins/hello/v0.1.0/docs/hello.md)\n",
	} {
		got, err := of(version)
		must.NoError(t, err, must.Sprint(version))
		test.Eq(t, want, got)
	}
	_, err := of("0.3.0")
	test.ErrorContains(t, err, `there is no section "## 0.3.0"`)
	_, err = of("0.1.1")
	test.ErrorContains(t, err, "the section of 0.1.1 has no entry")
}

// Whoever releases next finds a section for it.
func TestNotes_EveryPluginHasThem(t *testing.T) {
	plugins, err := build.Plugins("../..")
	must.NoError(t, err)
	must.SliceNotEmpty(t, plugins)
	for _, p := range plugins {
		text, err := os.ReadFile(filepath.Join(p.Dir, "CHANGELOG.md"))
		must.NoError(t, err)
		test.StrContains(t, string(text), "\n## "+unreleased+"\n", test.Sprint(p.Name))
	}
}

func TestOptions_RefuseWhatIsNotPublished(t *testing.T) {
	_, err := Build(t.Context(), Options{Root: "../..", Archs: []string{"riscv64"}})
	test.ErrorContains(t, err, `nothing is published for "riscv64"`)
	_, err = Build(t.Context(), Options{Root: "../..", Plugin: "execlite"})
	test.ErrorContains(t, err, `there is no plugin "execlite"`)
	_, err = BuildTag(t.Context(), Options{Root: "../.."}, "0.1.0")
	test.ErrorContains(t, err, "-plugin=NAME")
	_, err = BuildTag(t.Context(), Options{Root: "../..", Plugin: "usb"}, "9.9.9")
	test.ErrorContains(t, err, "there is no tag plugins/usb/v9.9.9")
}

func TestToolchain_IsTheOneOfTheBinary(t *testing.T) {
	said := ""
	o := Options{Root: ".", Say: func(format string, args ...any) { said = fmt.Sprintf(format, args...) }}
	must.NoError(t, o.choose(t.Context(), runtime.Version()))
	test.Eq(t, "", o.Toolchain+said)
	must.NoError(t, o.choose(t.Context(), "go1.26.0-X:nojsonv2"))
	test.Eq(t, "go1.26.0", o.Toolchain)
	test.StrContains(t, said, "Go is "+runtime.Version()+" here: the go command gets go1.26.0")
}
