// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// artefact is what zip, packages and SBOM of one binary have in common.
type artefact struct {
	Options
	binary
	config  []byte // the example of the agent's configuration
	summary string // half a line
	scratch string // a directory

	// what collect finds
	goroot    string
	programs  []program // the plugin and those in it
	modules   []*linked // those of others that they have code of
	license   license   // of all that the binary is made of
	documents []file    // all but the binary
}

// file is one that a zip and a package have.
type file struct {
	name string // in the zip
	text []byte
	mode os.FileMode
}

// collect finds what belongs to the binary.
func (a *artefact) collect(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT")
	cmd.Dir = a.plugin.Dir
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("failed to find Go's own files: %w", err)
	}
	a.goroot = strings.TrimSpace(string(out))
	if err := a.links(ctx); err != nil {
		return err
	}
	std, err := goLicense(a.goroot)
	if err != nil {
		return err
	}
	a.license = license{ids: []string{ownLicense}}.and(std)
	for _, m := range a.modules {
		a.license = a.license.and(m.licenses)
	}
	notice, err := a.notice()
	if err != nil {
		return err
	}
	own, err := os.ReadFile(filepath.Join(a.Root, "LICENSE"))
	if err != nil {
		return err
	}
	page, err := os.ReadFile(filepath.Join(a.Root, "docs", a.plugin.Name+".md"))
	if err != nil {
		return err
	}
	a.documents = []file{
		{name: "LICENSE", text: own, mode: 0o644},
		{name: "NOTICE", text: notice, mode: 0o644},
		{name: "README.md", text: a.readme(page), mode: 0o644},
		{name: "example/" + a.plugin.Binary + ".hcl", text: a.config, mode: 0o644},
	}
	jobs, err := a.examples(ctx)
	a.documents = append(a.documents, jobs...)
	return err
}

// ownLicense is that of the project.
const ownLicense = "MPL-2.0"

// summary is the sentence that the first line of a binary's help ends with.
func summary(help []byte) string {
	line, _, _ := strings.Cut(string(help), "\n")
	_, sentence, _ := strings.Cut(line, ": ")
	return sentence
}

// description is that of the packages.
func (a *artefact) description() string {
	kind := ""
	if a.plugin.Libusb {
		kind = "\nThis kind reads /sys, and needs no library."
	}
	if a.libusb {
		kind = "\nThis kind also reads descriptors by libusb."
	}
	return "Nomad plugin that " + a.summary + "\n" +
		"A plugin for HashiCorp Nomad, of the Outrider project. The agent loads it\nafter its next restart." + kind
}

// examples are the files of the plugin's folder example that are in git, without its tests.
func (a *artefact) examples(ctx context.Context) ([]file, error) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--", "example")
	cmd.Dir = a.plugin.Dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("failed to list the examples: %w", err)
	}
	var files []file
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name == "" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(a.plugin.Dir, name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: name, text: text, mode: 0o644})
	}
	return files, nil
}

// readme is the plugin's page, with links that lead into the zip or to the project's site at this version.
func (a *artefact) readme(page []byte) []byte {
	ref := a.setting("vcs.revision")
	if a.tagged() {
		ref = tagOf(a.plugin, a.version())
	}
	text := absolute(string(page), "docs", ref)
	examples := Project + "/blob/" + ref + "/" + path.Join("plugins", a.plugin.Name, "example")
	return []byte(strings.ReplaceAll(text, "]("+examples, "](example"))
}

var link = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)

// absolute makes the relative links of a page in a folder of the repository lead to the project's site.
func absolute(page, folder, ref string) string {
	return link.ReplaceAllStringFunc(page, func(found string) string {
		parts := link.FindStringSubmatch(found)
		return "](" + Project + "/blob/" + ref + "/" + path.Join(folder, parts[1]) + parts[2] + ")"
	})
}
