// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
)

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func (n *node) wantFile(name, text string, mode os.FileMode) {
	n.t.Helper()
	info, err := os.Lstat(n.path(name))
	must.NoError(n.t, err)
	test.Eq(n.t, mode, info.Mode())
	test.Eq(n.t, 0, info.Sys().(*syscall.Stat_t).Uid)
	got, err := os.ReadFile(n.path(name))
	must.NoError(n.t, err)
	test.True(n.t, string(got) == text, test.Sprintf("%s is not what was to be written", name))
}

func TestInstall_AndUninstallLeaveNothing(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	before := n.tree()

	code, dry := n.run("install", "-dry-run")
	must.Eq(t, 0, code, must.Sprint(dry))
	test.Eq(t, before, n.tree(), test.Sprint("a dry run changes something"))

	code, out := n.run("install")
	must.Eq(t, 0, code, must.Sprint(out))
	test.Eq(t, strings.ReplaceAll(`Agent: none runs
Plugin directory: DIR/data/plugins (plugins in data_dir of DIR/etc/nomad.hcl)
Configuration: DIR/etc (the usual place)
Checked: an agent loads it, as the driver stub 1.2.3
Wrote DIR/data/plugins/nomad-driver-stub
Wrote DIR/etc/nomad-driver-stub.hcl
Now restart the agent. Tasks go on.
`, "DIR", n.dir), out)
	test.Eq(t, "Dry run: nothing is changed.\n"+out, dry)
	n.wantFile("data/plugins/nomad-driver-stub", n.program(""), 0o755)
	files, err := agentconfig.Read(n.path("etc/nomad-driver-stub.hcl"))
	must.NoError(t, err)
	test.MapContainsKey(t, files[0].Plugins, binary)
	test.StrHasSuffix(t, "\n"+block, string(n.plugin.configFile()))

	installed := n.tree()
	code, out = n.run("install")
	test.Eq(t, 0, code)
	test.StrContains(t, out, "nomad-driver-stub is there already\n")
	test.StrContains(t, out, "nomad-driver-stub.hcl has a block plugin \"nomad-driver-stub\" already\n")
	test.StrNotContains(t, out, "Now restart")
	test.Eq(t, installed, n.tree())

	code, dry = n.run("uninstall", "-dry-run")
	must.Eq(t, 0, code, must.Sprint(dry))
	test.Eq(t, installed, n.tree(), test.Sprint("a dry run changes something"))
	code, out = n.run("uninstall")
	must.Eq(t, 0, code, must.Sprint(out))
	test.Eq(t, before, n.tree(), test.Sprint("after uninstall"))
	test.Eq(t, "Dry run: nothing is changed.\n"+out, dry)
	test.StrContains(t, out, "Now restart the agent; until then it has the plugin.")
	code, out = n.run("uninstall")
	test.Eq(t, 0, code)
	test.StrContains(t, out, "nomad-driver-stub is not there")
	test.StrNotContains(t, out, "Now restart")
}

func TestInstall_ReplacesAnOlderFileThatRuns(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	n.write("data/plugins/"+binary, n.program("older"))
	must.NoError(t, os.Chmod(n.path("data/plugins/"+binary), 0o755))
	n.write("data/plugins/.nomad-driver-stub.new-12", "left by one that was killed")
	old := exec.Command(n.path("data/plugins/" + binary))
	old.Env = append(os.Environ(), waitVar+"=1")
	stdin, err := old.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, old.Start())

	code, out := n.run("install")
	must.Eq(t, 0, code, must.Sprint(out))
	test.RegexMatch(t, regexp.MustCompile("Replaced .*/data/plugins/nomad-driver-stub: version .* by 1.2.3\n"), out)
	n.wantFile("data/plugins/"+binary, n.program(""), 0o755)
	stdin.Close()
	test.NoError(t, old.Wait(), test.Sprint("the old program was disturbed"))
	entries, err := os.ReadDir(n.path("data/plugins"))
	must.NoError(t, err)
	test.SliceLen(t, 1, entries, test.Sprintf("left: %v", entries))

	// what has the right content but another mode or owner is replaced too
	for name, spoil := range map[string]func(path string) error{
		"mode":  func(path string) error { return os.Chmod(path, 0o744) },
		"owner": func(path string) error { return os.Chown(path, 1000, 1000) },
	} {
		must.NoError(t, spoil(n.path("data/plugins/"+binary)))
		code, out = n.run("install")
		must.Eq(t, 0, code, must.Sprint(name, out))
		n.wantFile("data/plugins/"+binary, n.program(""), 0o755)
	}
}

// What an agent is started with says where things are.
func TestInstall_FindsTheDirectoriesOfAnAgent(t *testing.T) {
	needRoot(t)
	for name, row := range map[string]struct {
		args   []string
		files  map[string]string
		extra  func(*node)
		flags  []string
		plugin string
		want   []string
	}{
		"a unit of systemd": {
			args: []string{"-config", "DIR/etc"},
			extra: func(n *node) {
				n.write("proc/7/cgroup", "0::/system.slice/nomad-client.service\n")
			},
			plugin: "data/plugins",
			want: []string{"Agent: process 7\n", "Plugin directory: DIR/data/plugins (plugins in data_dir of DIR/etc/nomad.hcl)",
				"Configuration: DIR/etc (-config of the agent)", "sudo systemctl restart nomad-client."},
		},
		"a unit where no agent runs": {
			extra: func(n *node) { n.write("nomad.service", "") }, plugin: "data/plugins",
			want: []string{"Agent: none runs", "Now restart the agent: sudo systemctl restart nomad."},
		},
		"plugin_dir comes before data_dir, a later file before an earlier": {
			args: []string{"--config=DIR/etc", "-config=DIR/more"},
			files: map[string]string{"etc/a.json": `{"plugin_dir": "DIR/first"}`, "more/b.hcl": `plugin_dir = "DIR/second"`,
				"more/c.hcl~": `plugin_dir = "DIR/no"`, "more/.#c.hcl": `plugin_dir = "DIR/no"`,
				"more/d/e.hcl": `plugin_dir = "DIR/no"`},
			plugin: "second",
			want:   []string{"(plugin_dir of DIR/more/b.hcl)", "Configuration: DIR/etc (", "restart the agent, process 7."},
		},
		"flags of the agent come before files": {
			args: []string{"-config", "DIR/etc", "-data-dir=DIR/else"}, plugin: "else/plugins",
			want: []string{"(plugins in data_dir of the agent's command line)"},
		},
		"-plugin-dir of the agent comes first": {
			args: []string{"-data-dir", "DIR/else", "-plugin-dir", "DIR/mine", "-config=DIR/etc"}, plugin: "mine",
			want: []string{"(plugin_dir of the agent's command line)"},
		},
		"a relative file": {
			args: []string{"-config=one.hcl"}, files: map[string]string{"one.hcl": `data_dir = "DIR/one"`},
			plugin: "one/plugins",
			want:   []string{"Configuration: DIR/one.hcl (-config of the agent)", "\n\nplugin \"nomad-driver-stub\" {}\n\n"},
		},
		"a block in JSON": {
			args: []string{"-config=DIR/etc"}, plugin: "data/plugins",
			files: map[string]string{"etc/z.json": `{"plugin": {"nomad-driver-stub": {"config": {"greeting": "hi"}}}}`},
			want:  []string{"DIR/etc/z.json has a block plugin \"nomad-driver-stub\" already"},
		},
		"flags of install come first": {
			args: []string{"-config", "DIR/etc"}, files: map[string]string{"c/x.hcl": ""}, plugin: "p",
			flags: []string{"-plugin-dir=DIR/p", "-config-dir=DIR/c"},
			want:  []string{"DIR/p (given)", "DIR/c (given)", "Wrote DIR/c/nomad-driver-stub.hcl"},
		},
		"one of two agents": {
			args: []string{"-config", "DIR/etc"}, flags: []string{"-pid=8"}, plugin: "eight",
			extra: func(n *node) { n.agent(8, "-plugin-dir="+n.path("eight")) },
			want:  []string{"Agent: process 8", "Configuration: none was found"},
		},
		"another user's agent does not count": {
			args: []string{"-plugin-dir=DIR/no"}, plugin: "data/plugins",
			extra: func(n *node) { n.write("proc/7/status", "Uid:\t0\t1000\t0\t0\n") },
			want:  []string{"Agent: not that of another user (process 7), whose command line is not to be trusted\n"},
		},
		"other programs of Nomad do not count": {
			args: []string{"-plugin-dir=DIR/no"}, plugin: "data/plugins",
			extra: func(n *node) { n.write("proc/7/cmdline", "nomad\x00logmon\x00agent\x00") },
			want:  []string{"Agent: none runs"},
		},
		"nor do programs that say so": {
			args: []string{"-plugin-dir=DIR/no"}, plugin: "data/plugins",
			extra: func(n *node) { n.link("/usr/bin/sleep", "proc/7/exe") },
			want:  []string{"Agent: none runs"},
		},
		"an agent whose program was upgraded": {
			args: []string{"-plugin-dir=DIR/p"}, plugin: "p",
			extra: func(n *node) { n.link("/usr/bin/nomad (deleted)", "proc/7/exe") },
			want:  []string{"Agent: process 7"},
		},
		"the user of Nomad's package": {
			args: []string{"-config=DIR/etc"}, plugin: "data/plugins",
			extra: func(n *node) {
				n.trusted = []int{1234}
				n.chown("data", 1234)
				n.chown("etc", 1234)
				n.chown("etc/nomad.hcl", 1234)
			},
			want: []string{"Wrote DIR/etc/nomad-driver-stub.hcl"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			in := func(s string) string { return strings.ReplaceAll(s, "DIR", n.dir) }
			if row.args != nil {
				var args []string
				for _, arg := range row.args {
					args = append(args, in(arg))
				}
				n.agent(7, args...)
			}
			for file, text := range row.files {
				n.write(file, in(text))
			}
			if row.extra != nil {
				row.extra(n)
			}
			args := []string{"install"}
			for _, flag := range row.flags {
				args = append(args, in(flag))
			}
			before := n.tree()
			code, dry := n.run(append(args, "-dry-run")...)
			must.Eq(t, 0, code, must.Sprint(dry))
			must.Eq(t, before, n.tree())
			code, out := n.run(args...)
			must.Eq(t, 0, code, must.Sprint(out))
			test.Eq(t, "Dry run: nothing is changed.\n"+out, dry)
			n.wantFile(row.plugin+"/"+binary, n.program(""), 0o755)
			for _, want := range row.want {
				test.StrContains(t, out, in(want))
			}
		})
	}
}

// What root must not do, and what would not work, is refused with a sentence, and changes nothing.
func TestInstall_RefusesAndChangesNothing(t *testing.T) {
	needRoot(t)
	const stranger = 65534
	for name, row := range map[string]struct {
		arrange func(*node)
		args    []string
		want    string
	}{
		"a plugin directory of another user": {
			arrange: func(n *node) { n.write("data/plugins/x", ""); n.chown("data/plugins", stranger) },
			want:    "the plugin directory can't be used: DIR/data/plugins belongs to user 65534",
		},
		"one below a directory of another user": {
			arrange: func(n *node) { n.write("data/plugins/x", ""); n.chown("data", stranger) },
			want:    "the plugin directory can't be used: DIR/data belongs to user 65534",
		},
		"one that others may write to": {
			arrange: func(n *node) {
				n.write("data/plugins/x", "")
				must.NoError(n.t, os.Chmod(n.path("data/plugins"), 0o1777))
			},
			want: "others may write to DIR/data/plugins, and so could replace what is there",
		},
		"one that a group may write to": {
			arrange: func(n *node) { must.NoError(n.t, os.Chmod(n.path("data"), 0o775)) },
			want:    "others may write to DIR/data, and so could replace what is there",
		},
		"one behind another user's link": {
			arrange: func(n *node) {
				n.write("else/x", "")
				n.link("../else", "data/plugins")
				must.NoError(n.t, os.Lchown(n.path("data/plugins"), stranger, stranger))
			},
			want: "DIR/data/plugins belongs to user 65534",
		},
		"one on a file system without programs": {
			arrange: func(n *node) {
				dir := n.path("data/plugins")
				must.NoError(n.t, os.Mkdir(dir, 0o755))
				must.NoError(n.t, unix.Mount("none", dir, "tmpfs", unix.MS_NOEXEC, "mode=755"))
				n.t.Cleanup(func() { test.NoError(n.t, unix.Unmount(dir, 0)) })
			},
			want: "the plugin directory can't be used: DIR/data/plugins is mounted noexec",
		},
		"a configuration file of another user": {
			arrange: func(n *node) { n.chown("etc/nomad.hcl", stranger) },
			want:    "the agent's configuration can't be used: DIR/etc/nomad.hcl belongs to user 65534",
		},
		"a configuration directory that others may write to": {
			arrange: func(n *node) { must.NoError(n.t, os.Chmod(n.path("etc"), 0o777)) },
			want:    "the agent's configuration can't be used: others may write to DIR/etc",
		},
		"a configuration that is not valid": {
			arrange: func(n *node) { n.write("etc/x.hcl", "plugin {") },
			want:    "the agent's configuration can't be used: DIR/etc/x.hcl: ",
		},
		"a link": {
			arrange: func(n *node) { n.link("/usr/bin/nomad-driver-stub", "data/plugins/"+binary) },
			want: "DIR/data/plugins/nomad-driver-stub is a link to /usr/bin/nomad-driver-stub, as a package makes it: use the " +
				"package manager",
		},
		"another program": {
			arrange: func(n *node) {
				tool, err := exec.LookPath("go")
				must.NoError(n.t, err)
				text, err := os.ReadFile(tool)
				must.NoError(n.t, err)
				n.write("data/plugins/"+binary, string(text))
			},
			want: "nomad-driver-stub is not this plugin but another file",
		},
		"no program": {
			arrange: func(n *node) { n.write("data/plugins/"+binary, "#!/bin/sh\n") },
			want:    "nomad-driver-stub is not this plugin but another file",
		},
		"a directory in its place": {
			arrange: func(n *node) { n.write("data/plugins/"+binary+"/x", "") },
			want:    "nomad-driver-stub is not a file",
		},
		"a block that does not decode": {
			arrange: func(n *node) {
				n.write("etc/stub.hcl", "plugin \"nomad-driver-stub\" {\n  config {\n    greting = \"x\"\n  }\n}")
			},
			want: "the agent would not start with it: with the block plugin \"nomad-driver-stub\" of DIR/etc/stub.hcl: " +
				"Invalid label: No argument or block type is named \"greting\".",
		},
		"a block that the plugin refuses": {
			arrange: func(n *node) {
				n.write("etc/stub.hcl", "plugin \"nomad-driver-stub\" {\n  config {\n    greeting = \"\"\n  }\n}")
			},
			want: "DIR/etc/stub.hcl: SetConfig failed: greeting is empty\n",
		},
		"a plugin that speaks another API": {
			arrange: func(n *node) { n.t.Setenv(apiVar, "v9.9.9") },
			want:    "it speaks none of the versions of Nomad's plugin API: [\"v9.9.9\"] of \"driver\"",
		},
		"a plugin that does not start": {
			arrange: func(n *node) { n.exe = "/bin/false" },
			want:    "the agent would not start with it: the plugin does not start: Unrecognized remote plugin message",
		},
		"a plugin that says why it does not start": {
			arrange: func(n *node) { n.t.Setenv("TMPDIR", n.path("no")) },
			want:    "the agent would not start with it: the plugin does not start: plugin init error: open DIR/no/plugin",
		},
		"several agents": {
			arrange: func(n *node) { n.agent(7); n.agent(8) },
			want: "several agents run (processes 7, 8): choose one with -pid, or give -plugin-dir and " +
				"-config-dir\n",
		},
		"an agent in a container": {
			arrange: func(n *node) { n.agent(7); n.link("mnt:[2]", "proc/7/ns/mnt") },
			want: "the agent (process 7) sees other files than this shell, as in a container: run this command where the " +
				"agent runs, or give -plugin-dir and -config-dir as they are here\n",
		},
		"a process that is no agent": {
			args: []string{"-pid=9"}, want: "process 9 is no Nomad agent of root or of this user",
		},
		"an agent without directories": {
			arrange: func(n *node) { n.agent(7, "-dev") },
			want:    "the agent (process 7) has neither plugin_dir nor data_dir, as with -dev: start it with -plugin-dir",
		},
		"no Nomad at all": {
			arrange: func(n *node) { n.usualConfig, n.usualData = n.path("no"), n.path("no") },
			want:    "no agent runs, and neither DIR/no nor a configuration has a plugin directory: give -plugin-dir",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if row.arrange != nil {
				row.arrange(n)
			}
			before := n.tree()
			for _, flag := range [][]string{{"-dry-run"}, nil} {
				code, out := n.run(append(append([]string{"install"}, row.args...), flag...)...)
				test.Eq(t, 1, code, test.Sprint(out))
				test.StrContains(t, out, strings.ReplaceAll(row.want, "DIR", n.dir))
			}
			test.Eq(t, before, n.tree())
		})
	}
}

// Tasks of any user go through data_dir, so Nomad makes it for all.
func TestInstall_MakesADataDirForTasks(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	must.NoError(t, os.Remove(n.path("data")))
	code, out := n.run("install")
	must.Eq(t, 0, code, must.Sprint(out))
	info, err := os.Stat(n.path("data"))
	must.NoError(t, err)
	test.Eq(t, 0o755|os.ModeDir, info.Mode())
}

func TestUninstall_LeavesADirectoryThatHasMore(t *testing.T) {
	needRoot(t)
	for name, arrange := range map[string]func(*node){
		"another plugin":    func(n *node) { n.write("data/plugins/other", "") },
		"one of a person's": func(n *node) { n.write("etc/p.hcl", fmt.Sprintf("plugin_dir = %q", n.path("data/mine"))) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			must.NoError(t, os.Mkdir(n.path("data/mine"), 0o755))
			arrange(n)
			before := n.tree()
			for _, verb := range []string{"install", "uninstall"} {
				code, out := n.run(verb)
				must.Eq(t, 0, code, must.Sprint(out))
			}
			test.Eq(t, before, n.tree())
		})
	}
}

func TestInstall_LinksAHostVolumePlugin(t *testing.T) {
	needRoot(t)
	for name, row := range map[string]struct {
		arrange func(*node)
		args    []string
		dir     string // where the link is
		want    string
		stays   bool // the directory, or what uninstall finds
	}{
		"in the usual place": {dir: "data/host_volume_plugins", want: "(in the agent's data_dir)"},
		"in that of the agent": {
			arrange: func(n *node) {
				n.agent(7, "-config="+n.path("etc"), "-host-volume-plugin-dir", n.path("hv"))
			},
			dir: "hv", want: "(host_volume_plugin_dir of the agent's command line)", stays: true,
		},
		"in that of the configuration": {
			arrange: func(n *node) {
				n.write("etc/a.json", fmt.Sprintf(`{"client": {"host_volume_plugin_dir": %q}}`, n.path("old")))
				n.write("etc/c.hcl", fmt.Sprintf("client {\n  host_volume_plugin_dir = %q\n}\n", n.path("hv")))
				n.write("etc/d.hcl", "client {\n  enabled = true\n}\n")
			},
			dir: "hv", want: "(host_volume_plugin_dir of DIR/etc/c.hcl)", stays: true,
		},
		"in that of a flag": {
			args: []string{"-host-volume-plugin-dir=DIR/hv"}, dir: "hv", want: "(given)", stays: true,
		},
		"instead of one to another":    {arrange: linked("/elsewhere/" + binary), dir: "data/host_volume_plugins"},
		"instead of a file of its own": {arrange: copied, dir: "data/host_volume_plugins"},
		"beside what was left by a kill": {
			arrange: func(n *node) { n.link("x", "data/host_volume_plugins/.stub.new-12") }, dir: "data/host_volume_plugins",
		},
		"beside another": {
			arrange: func(n *node) { n.write("data/host_volume_plugins/other", "") },
			dir:     "data/host_volume_plugins", stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.plugin.HostVolumePlugin = "stub"
			if row.arrange != nil {
				row.arrange(n)
			}
			args := []string{"install"}
			for _, arg := range row.args {
				args = append(args, strings.ReplaceAll(arg, "DIR", n.dir))
			}
			before := n.tree()
			code, dry := n.run(append(args, "-dry-run")...)
			must.Eq(t, 0, code, must.Sprint(dry))
			must.Eq(t, before, n.tree())
			code, out := n.run(args...)
			must.Eq(t, 0, code, must.Sprint(out))
			test.Eq(t, "Dry run: nothing is changed.\n"+out, dry)
			test.StrContains(t, out, "Directory of host volume plugins: "+n.path(row.dir)+" "+
				strings.ReplaceAll(row.want, "DIR", n.dir))
			test.StrContains(t, out, "Linked "+n.path(row.dir)+"/stub to it\n")
			link := n.path(row.dir + "/stub")
			to, err := os.Readlink(link)
			must.NoError(t, err)
			test.Eq(t, n.path("data/plugins/"+binary), to)
			entries, err := os.ReadDir(n.path(row.dir))
			must.NoError(t, err)
			test.True(t, row.stays || len(entries) == 1, test.Sprintf("left: %v", entries))

			installed := n.tree()
			code, out = n.run(args...)
			must.Eq(t, 0, code, must.Sprint(out))
			test.StrContains(t, out, link+" is there already\n")
			test.StrNotContains(t, out, "Now restart")
			test.Eq(t, installed, n.tree())

			args[0] = "uninstall"
			code, out = n.run(args...)
			must.Eq(t, 0, code, must.Sprint(out))
			test.StrContains(t, out, "Removed "+link+"\n")
			_, err = os.Lstat(link)
			test.ErrorIs(t, err, os.ErrNotExist)
			_, err = os.Lstat(n.path(row.dir))
			test.Eq(t, row.stays, err == nil)
		})
	}
}

func linked(to string) func(*node) {
	return func(n *node) { n.link(to, "data/host_volume_plugins/stub") }
}

func copied(n *node) { n.write("data/host_volume_plugins/stub", n.program("older")) }

func TestInstall_RefusesAHostVolumePluginOfOthers(t *testing.T) {
	needRoot(t)
	for name, row := range map[string]struct {
		arrange func(*node)
		args    []string
		want    string
	}{
		"another program": {
			arrange: func(n *node) { n.write("data/host_volume_plugins/stub", "#!/bin/sh\n") },
			want:    "DIR/data/host_volume_plugins/stub is not this plugin but another file: remove it, or move it away",
		},
		"a link to another program": {
			arrange: linked("/usr/bin/other"),
			want: "DIR/data/host_volume_plugins/stub is a link to /usr/bin/other, and not to this plugin: remove it, or move " +
				"it away",
		},
		"a directory of another user": {
			arrange: func(n *node) { linked("x")(n); n.chown("data/host_volume_plugins", 65534) },
			want:    "the directory of host volume plugins can't be used: DIR/data/host_volume_plugins belongs to user 65534",
		},
		"no directory that is known": {
			arrange: func(n *node) { n.usualConfig, n.usualData = n.path("no"), n.path("no") },
			args:    []string{"-plugin-dir=DIR/p", "-config-dir=DIR/etc2"},
			want:    "the agent's data_dir is not known, in which host volume plugins are: give -host-volume-plugin-dir",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.plugin.HostVolumePlugin = "stub"
			must.NoError(t, os.Mkdir(n.path("etc2"), 0o755))
			row.arrange(n)
			before := n.tree()
			args := []string{"install"}
			for _, arg := range row.args {
				args = append(args, strings.ReplaceAll(arg, "DIR", n.dir))
			}
			code, out := n.run(args...)
			test.Eq(t, 1, code, test.Sprint(out))
			test.StrContains(t, out, strings.ReplaceAll(row.want, "DIR", n.dir))
			test.Eq(t, before, n.tree())
		})
	}
}

func TestUninstall_LeavesAnothersHostVolumePlugin(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	n.plugin.HostVolumePlugin = "stub"
	code, out := n.run("install")
	must.Eq(t, 0, code, must.Sprint(out))
	linked("/usr/bin/" + binary)(n)
	code, out = n.run("uninstall")
	must.Eq(t, 0, code, must.Sprint(out))
	test.StrContains(t, out, n.path("data/host_volume_plugins/stub")+" stays: install did not make it\n")
	_, err := os.Lstat(n.path("data/host_volume_plugins/stub"))
	test.NoError(t, err)
}

func TestInstall_LeavesAFileWithoutABlock(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	n.write("etc/nomad-driver-stub.hcl", "# to do\n")
	code, out := n.run("install")
	test.Eq(t, 0, code)
	test.StrContains(t, out, "/etc/nomad-driver-stub.hcl is there already, but has no block plugin: "+
		"add plugin \"nomad-driver-stub\" {}\n")
	n.wantFile("etc/nomad-driver-stub.hcl", "# to do\n", 0o644)
}

func TestUninstall_LeavesWhatIsNotOurs(t *testing.T) {
	needRoot(t)
	for name, row := range map[string]struct {
		arrange func(*node)
		code    int
		want    string
		stays   string
	}{
		"a configuration that was changed": {
			arrange: func(n *node) { n.write("etc/nomad-driver-stub.hcl", string(n.plugin.configFile())+"# mine\n") },
			want: "DIR/etc/nomad-driver-stub.hcl stays: its block plugin \"nomad-driver-stub\" was not written by install, " +
				"or was changed\n",
			stays: "etc/nomad-driver-stub.hcl",
		},
		"a configuration of a package": {
			arrange: func(n *node) { n.write("etc/nomad-driver-stub.hcl", "plugin \"nomad-driver-stub\" {}\n") },
			want:    "DIR/etc/nomad-driver-stub.hcl stays", stays: "etc/nomad-driver-stub.hcl",
		},
		"a link": {
			arrange: func(n *node) { n.link("/usr/bin/nomad-driver-stub", "data/plugins/"+binary) },
			code:    1, want: "as a package makes it: use the package manager", stays: "etc/nomad-driver-stub.hcl",
		},
		"another program": {
			arrange: func(n *node) { n.write("data/plugins/"+binary, "#!/bin/sh\n") },
			code:    1, want: "is not this plugin but another file", stays: "data/plugins/nomad-driver-stub",
		},
		"a directory of another user": {
			arrange: func(n *node) { n.chown("data", 65534) },
			code:    1, want: "belongs to user 65534", stays: "data/plugins/nomad-driver-stub",
		},
		"a plugin with tasks": {
			arrange: func(n *node) {
				n.plugin.Remains = func(any, string) ([]string, error) { return nil, errors.New("2 tasks run") }
			},
			code: 1, want: "2 tasks run, or use -force\n", stays: "data/plugins/nomad-driver-stub",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			code, out := n.run("install")
			must.Eq(t, 0, code, must.Sprint(out))
			row.arrange(n)
			code, out = n.run("uninstall")
			test.Eq(t, row.code, code, test.Sprint(out))
			test.StrContains(t, out, strings.ReplaceAll(row.want, "DIR", n.dir))
			_, err := os.Lstat(n.path(row.stays))
			test.NoError(t, err)
			_, err = os.Lstat(n.path("data/plugins/" + binary))
			test.Eq(t, row.code == 0, os.IsNotExist(err))
		})
	}
}

func TestUninstall_SaysWhatRemains(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	n.write("etc/x.hcl", "plugin \"nomad-driver-stub\" {\n  config {\n    greeting = \"hi\"\n  }\n}")
	n.write("data/client/client-id", "01234567-89ab-cdef-0123-456789abcdef")
	n.plugin.Remains = func(config any, node string) ([]string, error) {
		return []string{fmt.Sprint("what ", config, " says of ", node)}, errors.New("a task runs")
	}
	code, out := n.run("install")
	must.Eq(t, 0, code, must.Sprint(out))
	code, out = n.run("uninstall", "-force")
	must.Eq(t, 0, code, must.Sprint(out))
	test.StrContains(t, out, "what map[greeting:hi] says of 01234567-89ab-cdef-0123-456789abcdef\n")
}

// A version that has other options wrote it; the file is still what install wrote.
func TestUninstall_RemovesTheFileOfAnotherVersion(t *testing.T) {
	needRoot(t)
	n := newNode(t)
	other := n.plugin
	other.Block += "# of another version\n"
	n.write("etc/nomad-driver-stub.hcl", string(other.configFile()))
	code, out := n.run("uninstall")
	must.Eq(t, 0, code, must.Sprint(out))
	_, err := os.Lstat(n.path("etc/nomad-driver-stub.hcl"))
	test.ErrorIs(t, err, os.ErrNotExist)
}

func TestRun_ExplainsWrongArguments(t *testing.T) {
	n := newNode(t)
	for args, want := range map[string]string{
		"install now":     "nomad-driver-stub install: [\"now\"] is not known\n",
		"install -force":  "flag provided but not defined: -force\n",
		"uninstall -pid=": "invalid value \"\" for flag -pid",
	} {
		code, out := n.run(strings.Fields(args)...)
		test.Eq(t, 2, code, test.Sprint(args))
		test.StrContains(t, out, want)
		test.StrContains(t, out, "-plugin-dir")
	}
	code, out := n.run("install", "-h")
	test.Eq(t, 0, code)
	test.StrContains(t, out, "-dry-run")
}
