// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
)

// These are where an agent that was installed from HashiCorp's packages looks for plugins: in its data_dir.
const (
	pluginDir     = "/opt/nomad/data/plugins"
	hostVolumeDir = "/opt/nomad/data/host_volume_plugins"
)

// packageRelease is the number that follows the version in a package's: which packaging of the version it is.
const packageRelease = "1"

// packageFormats are those that nfpm makes, with the names of files as each format has them. The version in a name is
// that of the zip's: GitHub renames files with a ~.
var packageFormats = map[string]func(a *artefact) string{
	"deb": func(a *artefact) string {
		return fmt.Sprintf("%s_%s-%s_%s.deb", a.name(), a.version(), packageRelease, a.arch)
	},
	"rpm": func(a *artefact) string {
		arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[a.arch]
		return fmt.Sprintf("%s-%s-%s.%s.rpm", a.name(), a.version(), packageRelease, arch)
	},
}

// packageVersion is a version that deb and rpm allow, in which all that comes before a release sorts below it:
// 0.2.0~rc.1 for 0.2.0-rc.1.
func packageVersion(version string) string {
	release, pre, found := strings.Cut(version, "-")
	if !found {
		return version
	}
	return release + "~" + strings.ReplaceAll(pre, "-", ".")
}

// nfpm is its configuration (https://nfpm.goreleaser.com/docs/configuration), in JSON, which is YAML too.
type nfpm struct {
	Name            string        `json:"name"`
	Arch            string        `json:"arch"`
	Platform        string        `json:"platform"`
	Version         string        `json:"version"`
	VersionSchema   string        `json:"version_schema"`
	Release         string        `json:"release"`
	Section         string        `json:"section"`
	Priority        string        `json:"priority"`
	Maintainer      string        `json:"maintainer"`
	Description     string        `json:"description"`
	Homepage        string        `json:"homepage"`
	License         string        `json:"license"`
	MTime           time.Time     `json:"mtime"`
	DisableGlobbing bool          `json:"disable_globbing"`
	Contents        []nfpmContent `json:"contents"`
	Scripts         nfpmScripts   `json:"scripts"`
	relations
	RPM nfpmRPM `json:"rpm"`
}

type nfpmContent struct {
	Src      string    `json:"src,omitempty"`
	Dst      string    `json:"dst"`
	Type     string    `json:"type,omitempty"`
	Packager string    `json:"packager,omitempty"` // the only format that has it
	FileInfo *nfpmInfo `json:"file_info,omitempty"`
}

type nfpmInfo struct {
	Mode  os.FileMode `json:"mode,omitempty"`
	MTime time.Time   `json:"mtime"`
}

type nfpmScripts struct {
	PostRemove string `json:"postremove,omitempty"` // a file
}

type nfpmRPM struct {
	Summary   string `json:"summary"`
	BuildHost string `json:"buildhost"` // without it, that of the machine
}

// packages writes the deb and the rpm.
func (a *artefact) packages(ctx context.Context, dir string) error {
	tool, err := gotool.Path(ctx, a.Root, "nfpm")
	if err != nil {
		return err
	}
	contents, err := a.contents()
	if err != nil {
		return err
	}
	for format, name := range packageFormats {
		config := nfpm{
			Name: a.name(), Arch: a.arch, Platform: "linux",
			Version: packageVersion(a.version()), VersionSchema: "none", Release: packageRelease,
			Section: "admin", Priority: "optional", Maintainer: "The Outrider Authors <outrider-dev@users.noreply.github.com>",
			Description: a.description(), Homepage: Project, License: a.license.String(),
			MTime: a.time, DisableGlobbing: true, Contents: contents,
			RPM: nfpmRPM{Summary: "Nomad plugin that " + a.summary, BuildHost: "localhost"},
		}
		if config.relations, err = a.relations(format); err != nil {
			return err
		}
		if format == "rpm" {
			config.Scripts.PostRemove = filepath.Join(a.scratch, "postremove")
			if err := os.WriteFile(config.Scripts.PostRemove, []byte(postRemove), 0o600); err != nil {
				return err
			}
		}
		text, err := json.Marshal(config)
		if err != nil {
			return err
		}
		path := filepath.Join(a.scratch, "nfpm.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, tool, "package", "--config", path, "--packager", format,
			"--target", filepath.Join(dir, name(a)))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("failed to make the %s: %w\n%s", format, err, out)
		}
	}
	return nil
}

// postRemove removes the directories that an rpm's files made, where Nomad is not installed: dpkg does the same by
// itself. The package does not own those above pluginDir, since it would change their owner and mode where Nomad made
// them.
const postRemove = `if [ "$1" = 0 ] && ! command -v nomad >/dev/null; then
  rmdir --ignore-fail-on-non-empty ` + pluginDir + ` ` + hostVolumeDir + ` /opt/nomad/data /opt/nomad /etc/nomad.d 2>/dev/null || :
fi
`

// block is the configuration file of a package. It is the same in each version: dpkg asks a person what to do about a
// file that both the node's operator and the new version have changed, and fails where there is nobody.
func (a *artefact) block() []byte {
	return fmt.Appendf(nil, `# Nomad loads the plugin because of this block. "%[1]s config" prints one with every option.
plugin %[1]q {
  config {
  }
}
`, a.plugin.Binary)
}

// contents are the files of a package. In an rpm they are also the directories that are removed with them, as dpkg
// does by itself. The other directories are those of the system or of Nomad, whose owner and mode an entry would
// change.
func (a *artefact) contents() ([]nfpmContent, error) {
	doc := "/usr/share/doc/" + a.name()
	info := func(mode os.FileMode) *nfpmInfo { return &nfpmInfo{Mode: mode, MTime: a.time} }
	contents := []nfpmContent{
		{Src: a.path, Dst: "/usr/bin/" + a.plugin.Binary, FileInfo: info(0o755)},
		{Src: "/usr/bin/" + a.plugin.Binary, Dst: pluginDir + "/" + a.plugin.Binary, Type: "symlink", FileInfo: info(0o777)},
		{Src: "NOTICE", Dst: doc + "/copyright", Type: "symlink", Packager: "deb", FileInfo: info(0o777)},
	}
	dirs := []string{pluginDir, doc}
	if id := a.plugin.HostVolume; id != "" { // both packagers replace the link by a rename
		contents = append(contents, nfpmContent{Src: "/usr/bin/" + a.plugin.Binary, Dst: hostVolumeDir + "/" + id,
			Type: "symlink", FileInfo: info(0o777)})
		dirs = append(dirs, hostVolumeDir)
	}
	for _, f := range a.documents {
		for dir := path.Dir(f.name); dir != "."; dir = path.Dir(dir) {
			dirs = append(dirs, doc+"/"+dir)
		}
	}
	for _, dir := range slices.Compact(slices.Sorted(slices.Values(dirs))) {
		contents = append(contents, nfpmContent{Dst: dir, Type: "dir", Packager: "rpm", FileInfo: info(0o755)})
	}
	config := file{name: "config", text: a.block(), mode: 0o644}
	documents := append(a.documents[:len(a.documents):len(a.documents)], config)
	staged := filepath.Join(a.scratch, "doc-"+a.name()+"-"+a.arch)
	for _, f := range documents {
		src := filepath.Join(staged, f.name)
		if err := os.MkdirAll(filepath.Dir(src), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(src, f.text, 0o600); err != nil {
			return nil, err
		}
		c := nfpmContent{Src: src, Dst: doc + "/" + f.name, FileInfo: info(f.mode)}
		if f.name == "config" {
			c.Dst, c.Type = "/etc/nomad.d/"+a.plugin.Binary+".hcl", "config|noreplace"
		}
		contents = append(contents, c)
	}
	return contents, nil
}
