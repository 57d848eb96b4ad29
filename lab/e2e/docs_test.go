// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// developerPages are pages whose commands run in the root of a checkout.
var developerPages = []string{"README.md", "docs/start/lab.md", "docs/develop/conformance.md"}

// operatorPages are pages whose commands run on an operator's node, in a folder with the plugins' binaries.
var operatorPages = []string{"README.md", "docs/guides/harden.md", "docs/guides/migrate.md",
	"docs/plugins/exec-lite.md", "docs/plugins/python.md", "docs/plugins/usb.md"}

// TestDocs_EveryCommandIsRun checks that each block of commands is on a page that a test runs, or has a comment with
// the reason why it is not run.
func TestDocs_EveryCommandIsRun(t *testing.T) {
	root := "../.."
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" ||
			e.Name() == "node_modules") {
			return fs.SkipDir
		}
		if e.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		page, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for _, f := range readFences(t, page) {
			switch {
			case f.lang != "sh":
			case f.notRun != "":
				t.Logf("%v is not run: %s", f, f.notRun)
			case !slices.Contains(slices.Concat(developerPages, operatorPages, nodePages,
				[]string{deployPage, datasetPage}), page):
				t.Errorf("%v: no test runs the commands of this page", f)
			}
		}
		return nil
	})
	must.NoError(t, err)
}

// TestDocs_DevelopersCommandsWork runs the developers' commands of the README and other pages, each page with its own
// lab. The pages do not run in parallel, because only one lab at a time can use Nomad's default port. LAB_RUNTIME
// selects where the lab runs.
func TestDocs_DevelopersCommandsWork(t *testing.T) {
	testsupport.Long(t, "the README's demonstrations take minutes")
	for _, page := range developerPages {
		t.Run(page, func(t *testing.T) {
			dir := mkdir(t)
			env := append(os.Environ(), "LAB_DIR="+dir+"/lab", "NO_COLOR=1")
			blocks := slices.DeleteFunc(readFences(t, page), func(f fence) bool { return f.node != "" })
			runs := slices.ContainsFunc(blocks, func(f fence) bool { return f.lang == "sh" && f.notRun == "" })
			if runs {
				t.Cleanup(func() {
					out, err := shell(t, "../..", env, "go tool mage lab:down")
					test.NoError(t, err, test.Sprintf("failed to end the lab: %v\n%s", err, out))
				})
			}
			runFences(t, blocks, "../..", env, nil)
		})
	}
}

// TestDocs_OperatorsCommandsWork runs each page's commands on an agent without plugins. They install plugins, restart
// the agent and run jobs. Then the agent loads each configuration that the page shows.
func TestDocs_OperatorsCommandsWork(t *testing.T) {
	t.Parallel()
	for _, page := range operatorPages {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			if page == "docs/plugins/python.md" {
				testsupport.NeedPython(t)
			}
			n := newPlainNode(t)
			blocks := readFences(t, page)
			if page == "README.md" { // only its blocks with a node are for operators
				blocks = slices.DeleteFunc(blocks, func(f fence) bool { return f.node == "" })
				must.SliceNotEmpty(t, blocks)
				must.NoError(t, os.Symlink(n.work, filepath.Join(n.work, "bin")))
			}
			for name, text := range jobFiles(blocks) {
				must.NoError(t, os.WriteFile(filepath.Join(n.work, name), []byte(text), 0o644))
			}
			runFences(t, blocks, n.work, n.env(), n.places())
			out, err := shell(t, n.work, n.env(), "shopt -s nullglob; for job in *.nomad.hcl; do nomad job validate $job; done")
			test.NoError(t, err, test.Sprintf("a job of the page is not valid: %v\n%s", err, out))
			for _, f := range blocks {
				if f.lang == "hcl" && f.notRun == "" && pluginBlock.MatchString(f.text) {
					n.load(t, f)
				}
			}
		})
	}
}

var (
	pluginBlock = regexp.MustCompile(`(?m)^plugin "([^"]+)"`)
	jobBlock    = regexp.MustCompile(`(?m)^job "([^"]+)" \{`)
)

// jobFiles returns the text of each job on a page. The key is the name of the job's file.
func jobFiles(page []fence) map[string]string {
	files := map[string]string{}
	for _, f := range page {
		if m := jobBlock.FindStringSubmatch(f.text); f.lang == "hcl" && m != nil {
			files[m[1]+".nomad.hcl"] = f.text
		}
	}
	return files
}

// runFences runs a page's commands in order, each block in a shell that ends at the first error.
func runFences(t *testing.T, page []fence, dir string, env []string, places *strings.Replacer) {
	t.Helper()
	runFencesBy(t, page, func(commands string) (string, error) {
		if places != nil {
			commands = places.Replace(commands)
		}
		return shell(t, dir, env, commands)
	})
}

// runFencesBy runs a page's commands with a function that returns their output.
func runFencesBy(t *testing.T, page []fence, run func(commands string) (output string, err error)) {
	t.Helper()
	var out string
	for _, f := range page {
		if f.output {
			test.SliceEmpty(t, shown(f.text, out), test.Sprintf("%v: the commands above it did not print these lines", f))
		}
		if f.lang != "sh" || f.notRun != "" {
			continue
		}
		start := time.Now()
		var err error
		out, err = run(f.text)
		t.Logf("%v (%.1f s)\n%s\n%s", f, time.Since(start).Seconds(), f.text, out)
		must.Eq(t, f.fails, (err != nil), must.Sprintf("%v: the commands ended with %v", f, err))
		for _, want := range f.prints {
			must.StrContains(t, out, want, must.Sprintf("%v: the output lacks this text", f))
		}
	}
}

// shell runs commands, and returns stdout and stderr as one text.
func shell(t *testing.T, dir string, env []string, commands string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Cancel ends all children, too
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// plainNode is an operator's agent before the first plugin is installed.
type plainNode struct {
	agent.Agent
	dir  string // the agent's directory
	etc  string // replaces /etc/nomad.d: the agent reads it in addition to its own configuration
	work string // the unpacked binaries
	bin  string // in PATH: nomad, and stand-ins for systemctl and sudo
}

func newPlainNode(t *testing.T) *plainNode {
	t.Helper()
	top := mkdir(t)
	n := &plainNode{
		dir: filepath.Join(top, "agent"), etc: filepath.Join(top, "etc"),
		work: filepath.Join(top, "work"), bin: filepath.Join(top, "bin"),
	}
	for _, dir := range []string{n.etc, n.work, n.bin} {
		must.NoError(t, os.Mkdir(dir, 0o755))
	}
	for _, plugin := range []string{execLite, python, usbPlugin} {
		must.NoError(t, share(plugin, filepath.Join(n.work, filepath.Base(plugin))))
	}
	self, err := os.Executable()
	must.NoError(t, err)
	for name, target := range map[string]string{"nomad": nomadBinary, "systemctl": self} {
		must.NoError(t, os.Symlink(target, filepath.Join(n.bin, name)))
	}
	const sudo = "#!/bin/sh\nexec \"$@\"\n"
	must.NoError(t, os.WriteFile(filepath.Join(n.bin, "sudo"), []byte(sudo), 0o755)) //nolint:gosec // a program
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	n.Agent, err = agent.Run(ctx, agent.Options{Runtime: agent.Host, Dir: n.dir, Binary: nomadBinary, Name: "docs",
		Config: keepAllocations})
	must.NoError(t, err)
	t.Cleanup(func() { n.end(t) })
	// replace the file with additional configuration by a link to the directory n.etc
	more := filepath.Join(n.Info().Dir, "extra.hcl")
	must.NoError(t, os.Rename(more, filepath.Join(n.etc, "nomad.hcl")))
	must.NoError(t, os.Symlink(n.etc, more))
	return n
}

func (n *plainNode) env() []string {
	return append(os.Environ(), "NOMAD_ADDR="+n.Address(), "PATH="+n.bin+":"+os.Getenv("PATH"), systemctlDir+"="+n.dir)
}

// places returns a replacer that turns the pages' paths into this agent's paths.
func (n *plainNode) places() *strings.Replacer {
	return strings.NewReplacer("/opt/nomad/data/plugins", n.PluginDir(), "/etc/nomad.d", n.etc)
}

// load restarts the agent with one configuration from a page, and without the earlier ones.
func (n *plainNode) load(t *testing.T, f fence) {
	t.Helper()
	old, err := filepath.Glob(filepath.Join(n.etc, "*"))
	must.NoError(t, err)
	for _, path := range old {
		must.NoError(t, os.Remove(path))
	}
	must.NoError(t, os.WriteFile(filepath.Join(n.etc, "page.hcl"), []byte(f.text), 0o644))
	for _, m := range pluginBlock.FindAllStringSubmatch(f.text, -1) { // reinstall plugins that the page has uninstalled
		binary, installed := filepath.Join(n.work, m[1]), filepath.Join(n.PluginDir(), m[1])
		_, ours := os.Stat(binary) // fails for Nomad's own plugins
		if _, err := os.Stat(installed); err != nil && ours == nil {
			must.NoError(t, share(binary, installed))
		}
	}
	out, err := shell(t, n.work, n.env(), "systemctl restart nomad")
	must.NoError(t, err, must.Sprintf("%v: the agent does not start with this: %v\n%s", f, err, out))
}

// loaded waits until the agent has loaded each driver of this repository that config configures. Device plugins need no
// check: Nomad does not start if it fails to load one.
func loaded(ctx context.Context, a agent.Agent, config string) error {
	for _, m := range pluginBlock.FindAllStringSubmatch(config, -1) {
		driver := agent.Plugin{Binary: m[1]}.Driver()
		if driver == "" {
			continue
		}
		err := testsupport.Poll(time.Minute, func() error {
			node, err := nomad.Self(ctx, a.Client(), a.DataDir())
			if err == nil {
				_, err = nomad.Health(node, driver)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *plainNode) end(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	a, err := agent.Open(ctx, n.dir) // n.Agent is stale: systemctl has restarted the agent
	if err != nil {
		t.Error(err)
		return
	}
	if t.Failed() {
		log, err := a.Log()
		t.Logf("the agent's log (%v):\n%s", err, log)
	}
	test.NoError(t, a.Close(ctx))
}

const systemctlDir = "OUTRIDER_TEST_SYSTEMCTL"

// systemctl stands in for systemd's program, whose name is a link to this test binary. It restarts the agent, and waits
// until the agent and its plugins are healthy, because the page's next command follows immediately. Errors include the
// end of the agent's log.
func systemctl(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	a, err := agent.Open(ctx, os.Getenv(systemctlDir))
	if err != nil {
		return err
	}
	if !slices.Equal(args, []string{"restart", "nomad"}) {
		return fmt.Errorf("unknown arguments %q: only \"restart nomad\" is supported", args)
	}
	if err := a.Stop(ctx); err != nil {
		return err
	}
	if err := a.Start(ctx); err != nil {
		return err
	}
	if err := agent.WaitHealthy(ctx, a); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(a.Info().Dir, "extra.hcl", "*.hcl"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := loaded(ctx, a, string(text)); err != nil {
			return fmt.Errorf("failed to load %s: %w", file, err)
		}
	}
	return nil
}
