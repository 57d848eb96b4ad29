// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/build"
)

// block is the configuration file in a package. It must be the same in each version: dpkg asks what to do if both the
// operator and a new version have changed a file, and fails without a terminal.
const block = `# Nomad loads the plugin because of this block. "%[1]s config" prints one with every option.
plugin %[1]q {
  config {
  }
}
`

// stamp matches the output of a plugin's subcommand version, and finds the version and the commit.
var stamp = regexp.MustCompile(`^\S+ (\S+)( \(untagged build.*\))?\nof commit ([0-9a-f]+) `)

// staged builds the plugin for this machine, reads its version and commit, and writes the files to publish to scratch.
func staged(ctx context.Context, o Options, p build.Plugin, scratch string) (*settings, error) {
	c := &settings{Plugin: p, Scratch: filepath.Base(scratch), Archs: slices.Clone(o.Archs)}
	if c.Archs[0] == runtime.GOARCH { // this machine's goes last: the supervisor of the last build stays in the checkout
		slices.Reverse(c.Archs)
	}
	builder := build.Builder{Root: o.Root, Static: true, Release: true, Bin: filepath.Join(scratch, "bin")}
	programs, err := builder.All(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	version, err := output(ctx, scratch, nil, programs[0], "version")
	if err != nil {
		return nil, err
	}
	found := stamp.FindStringSubmatch(version)
	if found == nil {
		return nil, fmt.Errorf("the binary's version %q has no commit: build in a git clone, with git on PATH", version)
	}
	c.Version, c.Commit, c.Ref = found[1], found[3], found[3]
	if found[2] == "" {
		c.Ref = "plugins/" + p.Name + "/v" + c.Version
	}
	files, err := c.documents(ctx, o.Root, programs[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(scratch, "block.hcl"), fmt.Appendf(nil, block, p.Binary), 0o600)
	}
	if err == nil {
		err = c.write(filepath.Join(scratch, "stage"), files)
	}
	return c, err
}

// documents returns the texts of the files that are published next to the binary, by name.
func (c *settings) documents(ctx context.Context, root, program string) (map[string]string, error) {
	notice, err := c.notice(ctx, root)
	if err != nil {
		return nil, err
	}
	config, err := output(ctx, root, nil, program, "config")
	if err != nil {
		return nil, err
	}
	files := map[string]string{"NOTICE": notice, "example/" + c.Binary + ".hcl": config + "\n"}
	listed, err := output(ctx, c.Plugin.Dir, nil, "git", "ls-files", "--", "example", ":!*_test.go")
	if err != nil {
		return nil, err
	}
	from := map[string]string{"LICENSE": "LICENSE", readme: c.page()}
	if _, err := os.Stat(filepath.Join(root, c.reference())); err == nil {
		from[options] = c.reference()
	}
	for _, name := range strings.Fields(listed) {
		from[name] = "plugins/" + c.Name + "/" + name
	}
	for name, source := range from {
		text, err := os.ReadFile(filepath.Join(root, source))
		if err != nil {
			return nil, err
		}
		files[name] = string(text)
		if path.Dir(name) == "." && path.Ext(name) == ".md" {
			files[name] = c.relink(string(text), path.Dir(source))
		}
	}
	return files, nil
}

// readme and options are the names, in the zip, of the plugin's page and of the page with its options.
const readme, options = "README.md", "OPTIONS.md"

func (c *settings) page() string      { return "docs/plugins/" + c.Name + ".md" }
func (c *settings) reference() string { return "docs/reference/" + c.Name + ".md" }

var link = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)

// relink changes a page's links, which are relative to folder, to lead into the zip, or to GitHub at this version.
func (c *settings) relink(text, folder string) string {
	return link.ReplaceAllStringFunc(text, func(found string) string {
		parts := link.FindStringSubmatch(found)
		target := path.Join(folder, parts[1])
		example, isExample := strings.CutPrefix(target, "plugins/"+c.Name+"/example")
		switch {
		case isExample:
			target = "example" + example
		case target == c.page():
			target = readme
		case target == c.reference():
			target = options
		default:
			target = "https://github.com/outrider-dev/outrider/blob/" + c.Ref + "/" + target
		}
		return "](" + target + parts[2] + ")"
	})
}

// write writes the files into the folder stage, and lists them in Files and their folders in Dirs.
func (c *settings) write(stage string, files map[string]string) error {
	for name, text := range files {
		file := filepath.Join(stage, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		c.Files = append(c.Files, name)
		for name != "." {
			name = path.Dir(name)
			c.Dirs = append(c.Dirs, name)
		}
	}
	slices.Sort(c.Files)
	slices.Sort(c.Dirs)
	c.Dirs = slices.Compact(c.Dirs)
	return nil
}
