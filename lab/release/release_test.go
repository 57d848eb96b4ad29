// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
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

// released is a clone of this checkout, changes included, in which every plugin has the tag of version 0.1.0, with
// the releases that were built of it.
type released struct {
	root    string
	commit  string
	results []Result
}

var (
	once sync.Once
	made released
	skip error // why the kind with libusb is missing
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := os.RemoveAll(made.root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var mplPackages = regexp.MustCompile(`\n    MPL-2\.0: [^:]*plugins/base,`)

var glibc = regexp.MustCompile(`libc6 \(>= 2\.[0-9]+\)`)

// version of all plugins of the tests.
const version = "0.1.0"

// theRelease is built once for all tests.
func theRelease(t *testing.T) released {
	t.Helper()
	once.Do(func() {
		checkout, err := build.Root(".")
		must.NoError(t, err)
		made.root, err = os.MkdirTemp("", "outrider-release-")
		must.NoError(t, err)
		// this checkout may have the tags of real releases, also that of version 0.1.0
		_, err = git(t.Context(), checkout, "clone", "--quiet", "--shared", "--no-tags", "--no-checkout", checkout,
			made.root)
		must.NoError(t, err)
		commit(t, made.root, checkout)
		_, err = git(t.Context(), made.root, "reset", "--quiet", "--hard")
		must.NoError(t, err)
		made.commit, err = git(t.Context(), made.root, "rev-parse", "HEAD")
		must.NoError(t, err)
		plugins, err := build.Plugins(made.root)
		must.NoError(t, err)
		for _, p := range plugins {
			tag(t, made.root, tagOf(p, version))
		}
		for _, arch := range Archs {
			_, err := sysroot(t.Context(), arch, t.Logf)
			skip = errors.Join(skip, err)
		}
		made.results, err = Build(t.Context(), Options{Root: made.root, Say: t.Logf})
		must.NoError(t, err)
	})
	must.SliceNotEmpty(t, made.results, must.Sprint("the release was not built"))
	return made
}

// kinds are the names of a plugin's artefacts, without version and architecture.
func kinds(p build.Plugin) []string {
	if p.Libusb && skip == nil {
		return []string{p.Binary, p.Binary + "-libusb"}
	}
	return []string{p.Binary}
}

// each calls do for every zip of the release.
func each(t *testing.T, do func(t *testing.T, r Result, kind, arch string, zip archive)) {
	t.Helper()
	for _, r := range theRelease(t).results {
		for _, kind := range kinds(r.Plugin) {
			for _, arch := range Archs {
				name := fmt.Sprintf("%s_%s_linux_%s", kind, version, arch)
				t.Run(name, func(t *testing.T) {
					zip, err := readZip(filepath.Join(r.Dir, name+".zip"))
					must.NoError(t, err)
					do(t, r, kind, arch, zip)
				})
			}
		}
	}
}

func TestArtefacts_HasTheFilesThatItShould(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	for _, r := range theRelease(t).results {
		var want []string
		for _, kind := range kinds(r.Plugin) {
			for _, arch := range Archs {
				rpm := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
				want = append(want, kind+"_0.1.0_linux_"+arch+".zip", kind+"_0.1.0_linux_"+arch+".cdx.json",
					kind+"_0.1.0-1_"+arch+".deb", kind+"-0.1.0-1."+rpm+".rpm")
			}
		}
		slices.Sort(want)
		test.Eq(t, append(want, "SHA256SUMS"), r.Files, test.Sprint(r.Plugin.Name))
		test.Eq(t, version, r.Version)
	}
}

// A kind that cannot be made here is no failure of a build, and is one to a reader of CI's log.
func TestArtefacts_HasTheKindWithLibusb(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	theRelease(t)
	if skip != nil {
		t.Skip(skip)
	}
	i := slices.IndexFunc(made.results, func(r Result) bool { return r.Plugin.Name == "usb" })
	for arch, machine := range map[string]string{"amd64": "x86-64", "arm64": "aarch64"} {
		zip, err := readZip(filepath.Join(made.results[i].Dir, "nomad-device-usb-libusb_0.1.0_linux_"+arch+".zip"))
		must.NoError(t, err)
		path := filepath.Join(t.TempDir(), "nomad-device-usb")
		must.NoError(t, os.WriteFile(path, zip.files["nomad-device-usb"], 0o755))
		got, err := libraries(path)
		must.NoError(t, err)
		must.SliceLen(t, 2, got, must.Sprintf("%v of %s", got, machine))
		test.Eq(t, "libc.so.6", got[0].name)
		test.True(t, later("2.35", got[0].version), test.Sprintf("glibc %s: older systems cannot run it", got[0].version))
		test.Eq(t, library{name: "libusb-1.0.so.0"}, got[1])
		test.StrContains(t, string(zip.files["NOTICE"]), "GNU LESSER GENERAL PUBLIC LICENSE")
	}
}

func TestArtefacts_BinaryTellsPluginVersionAndRevision(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	each(t, func(t *testing.T, r Result, kind, arch string, zip archive) {
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
			"GOOS": "linux", "-trimpath": "true",
			"CGO_ENABLED": map[bool]string{true: "1", false: "0"}[strings.HasSuffix(kind, "-libusb")]} {
			test.Eq(t, want, settings[key], test.Sprint(key))
		}
		test.False(t, bytes.Contains(text, []byte(made.root)), test.Sprint("it has the path of the folder it was built in"))

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
func TestArtefacts_IsLoadedByNomad(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	dir := t.TempDir()
	var configs []*config.PluginConfig
	each(t, func(t *testing.T, r Result, kind, arch string, zip archive) {
		if arch != runtime.GOARCH || kind != r.Plugin.Binary {
			return
		}
		path := filepath.Join(dir, r.Plugin.Binary)
		must.NoError(t, os.WriteFile(path, zip.files[r.Plugin.Binary], 0o755))
		configs = append(configs, &config.PluginConfig{Name: r.Plugin.Binary})
		out, err := exec.Command(path, "version").Output()
		must.NoError(t, err)
		test.StrHasPrefix(t, fmt.Sprintf("%s %s\nof commit %s ", kind, version, made.commit), string(out))
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
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	each(t, func(t *testing.T, r Result, kind, arch string, zip archive) {
		info, err := buildinfo.Read(bytes.NewReader(zip.files[r.Plugin.Binary]))
		must.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(r.Dir, fmt.Sprintf("%s_%s_linux_%s.cdx.json", kind, version, arch)))
		must.NoError(t, err)
		var bom struct {
			SerialNumber string
			Metadata     struct{ Timestamp string }
			Components   []struct {
				Name, Version, Purl string
				Licenses            []map[string]any
			}
		}
		must.NoError(t, json.Unmarshal(text, &bom))
		listed := map[string]string{}
		for _, c := range bom.Components {
			listed[c.Name] = c.Version
			test.SliceLen(t, 1, c.Licenses, test.Sprint(c.Name))
		}
		notice := string(zip.files["NOTICE"])
		for _, m := range info.Deps {
			if strings.HasPrefix(m.Path, projectPath) {
				continue
			}
			test.Eq(t, m.Version, listed[m.Path], test.Sprint(m.Path))
			test.StrContains(t, notice, "\n"+m.Path+" "+m.Version+"\n    ")
		}
		test.MapContainsKeys(t, listed, []string{"outrider-supervisor", "std", projectPath + "internal/core"})
		test.Eq(t, "", bom.SerialNumber)
		test.StrContains(t, notice, "\n    BUSL-1.1: ")
		test.RegexMatch(t, mplPackages, notice)
		for _, words := range []string{"Business Source License 1.1", "Mozilla Public License Version 2.0",
			"Mozilla Public License, version 2.0", "Apache License", "Redistribution and use in source and binary forms"} {
			test.StrContains(t, notice, words)
		}
	})
}

func TestArtefacts_ZipHasWhatAnOperatorNeeds(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	each(t, func(t *testing.T, r Result, kind, arch string, zip archive) {
		names := slices.Collect(maps.Keys(zip.files))
		for _, want := range []string{r.Plugin.Binary, "LICENSE", "NOTICE", "README.md",
			"example/" + r.Plugin.Binary + ".hcl"} {
			test.SliceContains(t, names, want)
		}
		jobs := slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".nomad.hcl") })
		test.SliceNotEmpty(t, jobs)
		test.StrContains(t, string(zip.files["README.md"]), "/blob/plugins/"+r.Plugin.Name+"/v"+version+"/docs/security.md")
		test.StrHasPrefix(t, "plugin \""+r.Plugin.Binary+"\" {", string(zip.files["example/"+r.Plugin.Binary+".hcl"]))
	})
}

func TestArtefacts_PackagesDeclareTheirPlaceAndNeeds(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
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
	each(t, func(t *testing.T, r Result, kind, arch string, _ archive) {
		binary := r.Plugin.Binary
		deb := filepath.Join(r.Dir, fmt.Sprintf("%s_%s-1_%s.deb", kind, version, arch))
		machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
		rpm := filepath.Join(r.Dir, fmt.Sprintf("%s-%s-1.%s.rpm", kind, version, machine))

		files := run("dpkg-deb", "--contents", deb)
		test.StrContains(t, files, "./opt/nomad/data/plugins/"+binary+" -> /usr/bin/"+binary)
		const face = "/opt/nomad/data/host_volume_plugins/dataset -> /usr/bin/nomad-device-dataset"
		test.Eq(t, r.Plugin.Name == "dataset", strings.Contains(files, "."+face))
		test.StrContains(t, files, "./usr/share/doc/"+kind+"/NOTICE")
		test.Eq(t, "/etc/nomad.d/"+binary+".hcl", run("dpkg-deb", "--info", deb, "conffiles"))
		block := run("sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -xO "./etc/nomad.d/$2.hcl"`, "sh", deb, binary)
		const want = "# Nomad loads the plugin because of this block. \"%[1]s config\" prints one with every option.\n" +
			"plugin %[1]q {\n  config {\n  }\n}"
		test.Eq(t, fmt.Sprintf(want, binary), block, test.Sprint("a change has dpkg ask at each upgrade"))
		test.Eq(t, version+"-1", run("dpkg-deb", "--field", deb, "Version"))

		links := run("rpm", "-qp", "--queryformat", "[%{FILENAMES} -> %{FILELINKTOS}\n]", rpm)
		test.StrContains(t, links, "/opt/nomad/data/plugins/"+binary+" -> /usr/bin/"+binary)
		test.Eq(t, r.Plugin.Name == "dataset", strings.Contains(links, face))
		test.Eq(t, "/etc/nomad.d/"+binary+".hcl", run("rpm", "-qpc", rpm))
		needs, wants := run("rpm", "-qp", "--requires", rpm), run("rpm", "-qp", "--recommends", rpm)
		debNeeds, debWants := run("dpkg-deb", "--field", deb, "Depends"), run("dpkg-deb", "--field", deb, "Recommends")
		if kind != binary {
			test.RegexMatch(t, glibc, debNeeds)
			test.StrContains(t, debNeeds, "libusb-1.0-0 (>= 2:1.0.22)")
			test.StrContains(t, needs, "libusb-1.0.so.0()(64bit)")
			test.StrContains(t, needs, "libc.so.6(GLIBC_2.")
			test.Eq(t, binary, run("dpkg-deb", "--field", deb, "Conflicts"))
		} else if r.Plugin.Name == "remote" {
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
			test.StrContains(t, debWants, "python3 (>= 3.8)")
			test.StrContains(t, wants, "python3 >= 3.8")
		default:
			test.Eq(t, "", debWants+wants)
		}
	})
	lower := packageVersion("0.1.0-rc.1")
	for _, v := range []string{lower, packageVersion("0.0.0-20261123001839-0123456789ab+dirty"),
		packageVersion("0.1.0-0.20261123001839-0123456789ab")} {
		run("dpkg", "--compare-versions", v+"-1", "lt", version+"-1")
		test.Eq(t, "-1", run("rpm", "--eval", "%{lua:print(rpm.vercmp('"+v+"-1', '"+version+"-1'))}"), test.Sprint(v))
	}
}

func TestArtefacts_ChecksumsFindAFlippedByte(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	for _, r := range theRelease(t).results {
		flipEach(t, r.Dir)
	}
}

// The release was built in one folder by this program. Another folder, and the commit's own targets, give the same.
func TestArtefacts_IsTheSameFromAClone(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	made := theRelease(t)
	o := Options{Root: made.root}
	plugins, err := o.resolve()
	must.NoError(t, err)
	again, err := buildClone(t.Context(), o, plugins, "HEAD", filepath.Join(t.TempDir(), "another", "folder"))
	must.NoError(t, err)
	must.SliceLen(t, len(made.results), again)
	for i, r := range made.results {
		test.NoError(t, sameFiles(r.Dir, again[i].Dir))
	}
}

// The archive has all that was built, but also a byte that was not.
func TestArtefacts_IsVerifiedFromAFile(t *testing.T) {
	testsupport.Long(t, "compiles every plugin for both architectures, twice")
	made := theRelease(t)
	first := made.results[0]
	name := first.Plugin.Binary + "_0.1.0_linux_" + runtime.GOARCH + ".zip"
	text, err := os.ReadFile(filepath.Join(first.Dir, name))
	must.NoError(t, err)
	changed := filepath.Join(t.TempDir(), name)
	must.NoError(t, os.WriteFile(changed, append(text, 0), 0o600))
	_, err = VerifyFile(t.Context(), Options{Root: made.root, Say: t.Logf}, changed)
	test.ErrorContains(t, err, "the files in it are the same: the archive was packed by something else")
}
