// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"archive/zip"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pluginutils/loader"
	"github.com/hashicorp/nomad/nomad/structs/config"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/mod/modfile"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/build"
)

// released is a clone of this checkout, with its uncommitted changes, and the releases that were built in the clone.
// There, every plugin has the tag of version 0.1.0.
type released struct {
	root    string
	commit  string
	results []Result
}

var (
	once sync.Once
	made released
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == interpreter {
		fmt.Fprintln(os.Stderr, interpreter+":", qemuexec(os.Args)) // qemuexec returns only after an error
		os.Exit(127)
	}
	code := m.Run()
	if err := os.RemoveAll(made.root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// version is the version of all plugins in the tests.
const version = "0.1.0"

// git runs a git command, with a name and an address for commits, and returns its output.
func git(t *testing.T, args ...string) string {
	t.Helper()
	as := []string{"-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false",
		"-c", "tag.gpgsign=false"}
	out, err := output(t.Context(), ".", nil, "git", append(as, args...)...)
	must.NoError(t, err)
	return out
}

// theRelease returns the releases of all plugins, which are built once for all tests.
func theRelease(t *testing.T) released {
	t.Helper()
	once.Do(func() {
		checkout, err := build.Root(".")
		must.NoError(t, err)
		made.root, err = os.MkdirTemp("", "outrider-release-")
		must.NoError(t, err)
		// without tags: this checkout may have those of real releases, including version 0.1.0
		git(t, "clone", "--quiet", "--shared", "--no-tags", "--no-checkout", checkout, made.root)
		repository := "--git-dir=" + filepath.Join(made.root, ".git")
		git(t, repository, "--work-tree="+checkout, "add", "--all")
		git(t, repository, "commit", "--quiet", "--allow-empty", "--message=state")
		git(t, "-C", made.root, "reset", "--quiet", "--hard")
		made.commit = git(t, "-C", made.root, "rev-parse", "HEAD")
		plugins, err := build.Plugins(made.root)
		must.NoError(t, err)
		for _, p := range plugins {
			git(t, "-C", made.root, "tag", "plugins/"+p.Name+"/v"+version)
		}
		made.results, err = Build(t.Context(), Options{Root: made.root})
		must.NoError(t, err)
	})
	must.SliceNotEmpty(t, made.results, must.Sprint("the release was not built"))
	return made
}

// archive is a zip in memory.
type archive struct{ files map[string][]byte }

func readZip(t *testing.T, path string) archive {
	t.Helper()
	r, err := zip.OpenReader(path)
	must.NoError(t, err)
	defer r.Close()
	a := archive{files: map[string][]byte{}}
	for _, f := range r.File {
		a.files[f.Name], err = fs.ReadFile(r, f.Name)
		must.NoError(t, err)
	}
	return a
}

// each calls do for every zip of the release.
func each(t *testing.T, do func(t *testing.T, r Result, arch string, zip archive)) {
	t.Helper()
	for _, r := range theRelease(t).results {
		for _, arch := range Archs {
			name := fmt.Sprintf("%s_%s_linux_%s", r.Plugin.Binary, version, arch)
			t.Run(name, func(t *testing.T) { do(t, r, arch, readZip(t, filepath.Join(r.Dir, name+".zip"))) })
		}
	}
}

func TestArtefacts_IncludeTheExpectedFiles(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	for _, r := range theRelease(t).results {
		want := []string{"SHA256SUMS"}
		for arch, rpm := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
			name := r.Plugin.Binary
			want = append(want, name+"_0.1.0_linux_"+arch+".zip", name+"_0.1.0_linux_"+arch+".cdx.json",
				name+"_0.1.0-1_"+arch+".deb", name+"-0.1.0-1."+rpm+".rpm")
		}
		test.SliceContainsAll(t, want, r.Files, test.Sprint(r.Plugin.Name))
		test.Eq(t, version, r.Version)
	}
}

func TestArtefacts_BinaryReportsPluginVersionAndRevision(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	each(t, func(t *testing.T, r Result, arch string, zip archive) {
		text := zip.files[r.Plugin.Binary]
		info, err := buildinfo.Read(bytes.NewReader(text))
		must.NoError(t, err)
		test.Eq(t, "github.com/outrider-dev/outrider/plugins/"+r.Plugin.Name, info.Path)
		test.Eq(t, debug.Module{Path: info.Path, Version: "v" + version}, info.Main)
		test.Eq(t, runtime.Version(), info.GoVersion)
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		for key, want := range map[string]string{"vcs.revision": made.commit, "vcs.modified": "false", "GOARCH": arch,
			"GOOS": "linux", "-trimpath": "true", "CGO_ENABLED": "0"} {
			test.Eq(t, want, settings[key], test.Sprint(key))
		}
		test.False(t, bytes.Contains(text, []byte(made.root)), test.Sprint("it contains the path of the build folder"))

		path := filepath.Join(r.Plugin.Dir, "go.mod")
		mod, err := os.ReadFile(path)
		must.NoError(t, err)
		parsed, err := modfile.Parse(path, mod, nil)
		must.NoError(t, err)
		required := map[string]string{}
		for _, m := range parsed.Require {
			required[m.Mod.Path] = m.Mod.Version
		}
		test.Greater(t, 50, len(info.Deps))
		for _, m := range info.Deps {
			test.Eq(t, required[m.Path], m.Version, test.Sprint(m.Path))
		}
	})
}

// Nomad's loader starts each binary and reads its name and version.
func TestArtefacts_AreLoadedByNomad(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	dir := t.TempDir()
	var configs []*config.PluginConfig
	each(t, func(t *testing.T, r Result, arch string, zip archive) {
		if arch != runtime.GOARCH {
			return
		}
		path := filepath.Join(dir, r.Plugin.Binary)
		must.NoError(t, os.WriteFile(path, zip.files[r.Plugin.Binary], 0o755))
		configs = append(configs, &config.PluginConfig{Name: r.Plugin.Binary})
		out, err := exec.Command(path, "version").Output()
		must.NoError(t, err)
		test.StrHasPrefix(t, fmt.Sprintf("%s %s\nof commit %s ", r.Plugin.Binary, version, made.commit), string(out))
	})
	l, err := loader.NewPluginLoader(&loader.PluginLoaderConfig{Logger: hclog.NewNullLogger(), PluginDir: dir,
		SupportedVersions: loader.AgentSupportedApiVersions, Configs: configs})
	must.NoError(t, err)
	var loaded []string
	for _, plugins := range l.Catalog() {
		for _, p := range plugins {
			loaded = append(loaded, p.Name+" "+p.PluginVersion)
		}
	}
	slices.Sort(loaded)
	test.Eq(t, []string{"dataset " + version, "exec-lite " + version, "python " + version, "remote " + version,
		"usb " + version}, loaded)
}

func TestArtefacts_NoticeAndSBOMHaveEveryModule(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	made := theRelease(t)
	const embedded = "internal/core/supervisor/embedded/outrider-supervisor"
	supervisor, err := buildinfo.ReadFile(filepath.Join(made.root, embedded))
	must.NoError(t, err)
	each(t, func(t *testing.T, r Result, arch string, zip archive) {
		info, err := buildinfo.Read(bytes.NewReader(zip.files[r.Plugin.Binary]))
		must.NoError(t, err)
		name := fmt.Sprintf("%s_%s_linux_%s.cdx.json", r.Plugin.Binary, version, arch)
		text, err := os.ReadFile(filepath.Join(r.Dir, name))
		must.NoError(t, err)
		test.StrNotContains(t, string(text), "../")
		var bom struct {
			SerialNumber string
			Metadata     struct {
				Timestamp string
				Tools     any
				Component struct{ Name, Version string }
			}
			Components []struct{ Name, Version, Purl string }
		}
		must.NoError(t, json.Unmarshal(text, &bom))
		test.Eq(t, info.Path+" v"+version, bom.Metadata.Component.Name+" "+bom.Metadata.Component.Version)
		test.Eq(t, "", bom.SerialNumber+bom.Metadata.Timestamp)
		test.Nil(t, bom.Metadata.Tools, test.Sprint("tools have checksums of a program of this machine"))
		listed := map[string]string{}
		for _, c := range bom.Components {
			listed[c.Name] = c.Version
		}
		test.Eq(t, runtime.Version(), listed["std"])
		test.Eq(t, "v"+version, listed["github.com/outrider-dev/outrider/internal/core"])
		notice := string(zip.files["NOTICE"])
		for _, m := range slices.Concat(info.Deps, supervisor.Deps) {
			if strings.HasPrefix(m.Path, "github.com/outrider-dev/outrider/") {
				continue
			}
			test.Eq(t, m.Version, listed[m.Path], test.Sprint(m.Path))
			test.StrContains(t, notice, "\n"+m.Path+" "+m.Version+"\n    ")
		}
		test.RegexMatch(t, mixed, notice)
		for _, words := range []string{"Business Source License 1.1", "Mozilla Public License Version 2.0",
			"Mozilla Public License, version 2.0", "Apache License", "Redistribution and use in source and binary forms"} {
			test.StrContains(t, notice, words)
		}
	})
}

// mixed matches the entry of Nomad in a NOTICE: Nomad's folders have licences of two kinds.
var mixed = regexp.MustCompile(
	`\ngithub.com/hashicorp/nomad v[^\n]*\n    LICENSE \[\d+\]\n(    .*\n)*    plugins/LICENSE \[`)

func TestArtefacts_ZipHasPagesAndExamples(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	each(t, func(t *testing.T, r Result, arch string, zip archive) {
		names := slices.Collect(maps.Keys(zip.files))
		for _, want := range []string{r.Plugin.Binary, "LICENSE", "NOTICE", "README.md",
			"example/" + r.Plugin.Binary + ".hcl"} {
			test.SliceContains(t, names, want)
		}
		_, err := os.Stat(filepath.Join(made.root, "docs/reference", r.Plugin.Name+".md"))
		test.Eq(t, err == nil, slices.Contains(names, "OPTIONS.md"))
		jobs := slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".nomad.hcl") })
		test.SliceNotEmpty(t, jobs)
		test.StrContains(t, string(zip.files["README.md"]),
			"/blob/plugins/"+r.Plugin.Name+"/v"+version+"/docs/explain/security.md")
		test.StrHasPrefix(t, "plugin \""+r.Plugin.Binary+"\" {", string(zip.files["example/"+r.Plugin.Binary+".hcl"]))
	})
}

func TestArtefacts_PackagesDeclareTheirPathsAndDependencies(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not installed")
	}
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("rpm is not installed")
	}
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", out))
		return strings.TrimSpace(string(out))
	}
	each(t, func(t *testing.T, r Result, arch string, _ archive) {
		binary := r.Plugin.Binary
		deb := filepath.Join(r.Dir, fmt.Sprintf("%s_%s-1_%s.deb", binary, version, arch))
		machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
		rpm := filepath.Join(r.Dir, fmt.Sprintf("%s-%s-1.%s.rpm", binary, version, machine))

		files := run("dpkg-deb", "--contents", deb)
		test.StrContains(t, files, "./opt/nomad/data/plugins/"+binary+" -> /usr/bin/"+binary)
		const face = "/opt/nomad/data/host_volume_plugins/dataset -> /usr/bin/nomad-device-dataset"
		test.Eq(t, r.Plugin.Name == "dataset", strings.Contains(files, "."+face))
		test.StrContains(t, files, "./usr/share/doc/"+binary+"/NOTICE")
		test.Eq(t, "/etc/nomad.d/"+binary+".hcl", run("dpkg-deb", "--info", deb, "conffiles"))
		block := run("sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -xO "./etc/nomad.d/$2.hcl"`, "sh", deb, binary)
		const want = "# Nomad loads the plugin because of this block. \"%[1]s config\" prints one with every option.\n" +
			"plugin %[1]q {\n  config {\n  }\n}"
		test.Eq(t, fmt.Sprintf(want, binary), block, test.Sprint("after a change dpkg asks at each upgrade"))
		test.Eq(t, version+"-1", run("dpkg-deb", "--field", deb, "Version"))

		links := run("rpm", "-qp", "--queryformat", "[%{FILENAMES} -> %{FILELINKTOS}\n]", rpm)
		test.StrContains(t, links, "/opt/nomad/data/plugins/"+binary+" -> /usr/bin/"+binary)
		test.Eq(t, r.Plugin.Name == "dataset", strings.Contains(links, face))
		test.Eq(t, "/etc/nomad.d/"+binary+".hcl", run("rpm", "-qpc", rpm))
		needs, wants := run("rpm", "-qp", "--requires", rpm), run("rpm", "-qp", "--recommends", rpm)
		debNeeds, debWants := run("dpkg-deb", "--field", deb, "Depends"), run("dpkg-deb", "--field", deb, "Recommends")
		if r.Plugin.Name == "remote" {
			test.Eq(t, "openssh-client", debNeeds)
			test.StrContains(t, needs, "openssh-clients")
		} else {
			test.Eq(t, "", debNeeds)
			test.StrNotContains(t, needs, "lib")
		}
		switch r.Plugin.Name {
		case "dataset":
			test.Eq(t, "zfsutils-linux", debWants)
			test.Eq(t, "", wants)
		case "python":
			test.Eq(t, "python3 (>= 3.8)", debWants)
			test.Eq(t, "python3 >= 3.8", wants)
		default:
			test.Eq(t, "", debWants+wants)
		}
	})
}

func TestArtefacts_ChecksumsFindAFlippedByte(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	for _, r := range theRelease(t).results {
		sums, err := os.ReadFile(filepath.Join(r.Dir, "SHA256SUMS"))
		must.NoError(t, err)
		for _, name := range r.Files {
			if name == "SHA256SUMS" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(r.Dir, name))
			must.NoError(t, err)
			download := t.TempDir()
			must.NoError(t, os.WriteFile(filepath.Join(download, "SHA256SUMS"), sums, 0o644))
			// the documented command, in a folder with only this download
			check := func() (string, error) {
				must.NoError(t, os.WriteFile(filepath.Join(download, name), text, 0o644))
				cmd := exec.Command("sha256sum", "--check", "--ignore-missing", "SHA256SUMS")
				cmd.Dir, cmd.Env = download, append(os.Environ(), "LC_ALL=C")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			out, err := check()
			must.NoError(t, err, must.Sprint(out))
			test.Eq(t, name+": OK\n", out)
			text[len(text)/2] ^= 1
			out, err = check()
			test.Error(t, err, test.Sprint(name))
			test.StrContains(t, out, name+": FAILED")
		}
	}
}

// This program has built the release in one folder. Verify builds it in another, by the commit's own targets, and must
// find only the byte that the test has changed. The release workflow makes this comparison for each plugin.
func TestVerify_FindsAFlippedByteAndNothingElse(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	made := theRelease(t)
	path := filepath.Join(made.root, "dist", "exec-lite", "nomad-driver-exec-lite_0.1.0-1_arm64.deb")
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	flip := func() {
		text[len(text)/2] ^= 1
		must.NoError(t, os.WriteFile(path, text, 0o644))
	}
	flip()
	defer flip()
	err = Verify(t.Context(), Options{Root: made.root, Plugin: "exec-lite"})
	must.ErrorContains(t, err, "dist/exec-lite differs from a build of the last commit")
	files := regexp.MustCompile(`(?m)^(Files|Only in) .*$`).FindAllString(err.Error(), -1)
	must.SliceLen(t, 1, files, must.Sprint(err))
	test.StrHasPrefix(t, "Files "+path+" and ", files[0])
}

// An untagged build must have a lower version than every release, in the order of Go, of dpkg and of rpm.
func TestArtefacts_OfAnEarlierCommitSortBelowTheRelease(t *testing.T) {
	testsupport.Long(t, "makes the release of every plugin, for both architectures")
	made := theRelease(t)
	git(t, "-C", made.root, "tag", "-d", "plugins/exec-lite/v0.1.0")
	kept := filepath.Join(made.root, "dist", "exec-lite")
	must.NoError(t, os.Rename(kept, kept+"-kept"))
	defer func() {
		git(t, "-C", made.root, "tag", "plugins/exec-lite/v0.1.0")
		test.NoError(t, os.RemoveAll(kept))
		test.NoError(t, os.Rename(kept+"-kept", kept))
	}()
	results, err := Build(t.Context(), Options{Root: made.root, Plugin: "exec-lite", Archs: []string{runtime.GOARCH}})
	must.NoError(t, err)
	r := results[0]
	test.StrHasPrefix(t, "0.0.0-", r.Version)
	test.StrHasSuffix(t, "-"+made.commit[:12], r.Version)
	for format, field := range map[string][]string{
		"deb": {"dpkg-deb", "--field", "Version"}, "rpm": {"rpm", "-qp", "--queryformat=%{VERSION}-%{RELEASE}"},
	} {
		found, err := filepath.Glob(filepath.Join(r.Dir, "*."+format))
		must.NoError(t, err)
		must.SliceLen(t, 1, found)
		args := append(slices.Clone(field[1:]), found[0])
		if format == "deb" {
			args = []string{"--field", found[0], "Version"}
		}
		is, err := output(t.Context(), ".", nil, field[0], args...)
		must.NoError(t, err)
		test.StrHasPrefix(t, "0.0.0~", is)
	}
}
