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

// artefact is what zip and packages of one binary have in common.
type artefact struct {
	Options
	binary
	config  []byte // the example of the agent's configuration
	scratch string // a directory
}

// file is one that a zip and a package have.
type file struct {
	name string // in the zip
	text []byte
	mode os.FileMode
}

// name is that of the package and of its files: nomad-driver-exec-lite.
func (a *artefact) name() string { return a.plugin.Binary }

// documents are the files beside the binary.
func (a *artefact) documents(ctx context.Context) ([]file, error) {
	license, err := os.ReadFile(filepath.Join(a.Root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	notice, err := os.ReadFile(filepath.Join(a.Root, "NOTICE"))
	if err != nil {
		return nil, err
	}
	page, err := os.ReadFile(filepath.Join(a.Root, "docs", a.plugin.Name+".md"))
	if err != nil {
		return nil, err
	}
	files := []file{
		{name: "LICENSE", text: license, mode: 0o644},
		{name: "NOTICE", text: notice, mode: 0o644},
		{name: "README.md", text: a.readme(page), mode: 0o644},
		{name: "example/" + a.plugin.Binary + ".hcl", text: a.config, mode: 0o644},
	}
	jobs, err := a.examples(ctx)
	return append(files, jobs...), err
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

var link = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)

// readme is the plugin's page, with links that lead into the zip or to the project's site at this version.
func (a *artefact) readme(page []byte) []byte {
	ref := a.setting("vcs.revision")
	if a.tagged() {
		ref = "plugins/" + a.plugin.Name + "/v" + a.version()
	}
	examples := path.Join("plugins", a.plugin.Name, "example")
	return link.ReplaceAllFunc(page, func(found []byte) []byte {
		parts := link.FindSubmatch(found)
		target := path.Join("docs", string(parts[1]))
		if rest, ok := strings.CutPrefix(target, examples); ok {
			return []byte("](example" + rest + string(parts[2]) + ")")
		}
		return []byte("](" + Project + "/blob/" + ref + "/" + target + string(parts[2]) + ")")
	})
}
