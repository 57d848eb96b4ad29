// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestStartTask_ErrorsForBadInputAreOneSentence(t *testing.T) {
	a := start(t, nil)
	file := filepath.Join(t.TempDir(), "plain")
	must.NoError(t, os.WriteFile(file, []byte("text"), 0o644))
	locked := filepath.Join(t.TempDir(), "locked")
	must.NoError(t, os.Mkdir(locked, 0)) // even its owner can't enter
	user := func(name string) func(*drivers.TaskConfig) { return func(c *drivers.TaskConfig) { c.User = name } }
	for name, c := range map[string]struct {
		config string
		change func(*drivers.TaskConfig)
		want   string
	}{
		"empty command":      {`command = ""`, nil, "command is empty"},
		"no command":         {``, nil, "command is empty"},
		"missing binary":     {`command = "/no/such/program"`, nil, "/no/such/program"},
		"binary not in PATH": {`command = "no-such-program"`, nil, "no-such-program"},
		"not executable":     {fmt.Sprintf("command = %q", file), nil, "plain"},
		"a directory":        {`command = "/tmp"`, nil, "/tmp"},
		"no such user": {`command = "/bin/true"`, user("nobody-here"),
			`user "nobody-here" does not exist on this node`},
		"no such group": {`command = "/bin/true"`, user("nobody:no-group-here"),
			`group "no-group-here" does not exist on this node`},
		"no such extra group": {"command = \"/bin/true\"\ngroups = [\"no-group-here\"]", nil,
			`group "no-group-here" does not exist on this node`},
		"user id out of range": {`command = "/bin/true"`, user("4294967295"), "4294967295"},
		"missing work_dir":     {"command = \"/bin/true\"\nwork_dir = \"/no/such/dir\"", nil, "/no/such/dir"},
		"relative work_dir":    {"command = \"/bin/true\"\nwork_dir = \"nodir\"", nil, "nodir"},
		"work_dir is a file":   {fmt.Sprintf("command = \"/bin/true\"\nwork_dir = %q", file), nil, "plain"},
		"unreadable work_dir":  {fmt.Sprintf("command = \"/bin/true\"\nwork_dir = %q", locked), user("nobody"), "locked"},
		"unknown ulimit": {"command = \"/bin/true\"\nulimit { nofiles = \"10\" }", nil,
			`unknown ulimit "nofiles"`},
		"ulimit is not a number": {"command = \"/bin/true\"\nulimit { nofile = \"many\" }", nil, `nofile = "many"`},
		"negative ulimit":        {"command = \"/bin/true\"\nulimit { nofile = \"-5\" }", nil, `nofile = "-5"`},
		"ulimit soft above hard": {"command = \"/bin/true\"\nulimit { nofile = \"10:5\" }", nil,
			"soft limit above the hard one"},
		"umask is not octal":      {"command = \"/bin/true\"\numask = \"0999\"", nil, `umask "0999"`},
		"umask is a word":         {"command = \"/bin/true\"\numask = \"none\"", nil, `umask "none"`},
		"kill_mode":               {"command = \"/bin/true\"\nkill_mode = \"some\"", nil, "kill_mode"},
		"io_weight too small":     {"command = \"/bin/true\"\nio_weight = 0", nil, "io_weight"},
		"io_max of a file":        {fmt.Sprintf("command = \"/bin/true\"\nio_max { device = %q }", file), nil, "below /dev"},
		"negative pids_limit":     {"command = \"/bin/true\"\npids_limit = -1", nil, "pids_limit"},
		"nice out of range":       {"command = \"/bin/true\"\nnice = 20", nil, "nice"},
		"oom_score_adj too small": {"command = \"/bin/true\"\noom_score_adj = -1", nil, "oom_score_adj"},
		"oom_score_adj too big":   {"command = \"/bin/true\"\noom_score_adj = 1001", nil, "oom_score_adj"},
		"no files at all":         {"command = \"/bin/true\"\nlogs { max_files = 0 }", nil, "max_files"},
		"negative memory": {`command = "/bin/true"`, func(c *drivers.TaskConfig) {
			c.Resources.NomadResources.Memory.MemoryMB = -5
		}, "memory"},
		"no log directory": {`command = "/bin/true"`, func(c *drivers.TaskConfig) {
			c.AllocDir, c.StdoutPath = "/no/such/alloc", "/no/such/alloc/x"
		}, "/no/such/alloc"},
	} {
		change := c.change
		if change == nil {
			change = func(*drivers.TaskConfig) {}
		}
		cfg := a.task(c.config, change)
		_, _, err := a.StartTask(cfg)
		if err == nil {
			t.Errorf("%s: it started", name)
			a.destroy(cfg.ID)
			continue
		}
		text := strings.TrimPrefix(err.Error(), "rpc error: code = Unknown desc = ")
		must.StrContains(t, text, c.want, must.Sprintf("%s: got %q, want %q in it", name, text, c.want))
		must.StrNotContains(t, text, "\n", must.Sprintf("%s: got %q, want %q in it", name, text, c.want))
		test.False(t, len(text) > 300, test.Sprintf("%s: got %q, want %q in it", name, text, c.want))
		_, err = a.InspectTask(cfg.ID)
		test.Error(t, err, test.Sprintf("%s: the task is known", name))
		if _, err := os.Stat(filepath.Join(a.cgroup.Unified, filepath.Base(filepath.Dir(a.share)), cfg.AllocID+
			".web")); err == nil && a.cgroup.Unified != "" {
			t.Errorf("%s: its cgroup is left", name)
		}
	}
	left, _ := filepath.Glob(filepath.Join(a.state, "*/*/tasks/*"))
	test.SliceEmpty(t, left, test.Sprint("left behind"))
}

func TestSetConfig_ErrorsForBadInputAreOneSentence(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*PluginOptions)
		want   string
	}{
		"relative state_dir": {func(o *PluginOptions) { o.StateDir = "run" }, `state_dir "run" is not absolute`},
		"too long a path":    {func(o *PluginOptions) { o.StateDir = "/" + strings.Repeat("x", 100) }, "too long"},
		"log_collection":     {func(o *PluginOptions) { o.LogCollection = "both" }, "log_collection"},
		"no range":           {func(o *PluginOptions) { o.DeniedHostUIDs = "0,x" }, `"x"`},
		"range backwards":    {func(o *PluginOptions) { o.DeniedHostGIDs = "9-1" }, `"9-1"`},
	} {
		o := defaultPluginOptions()
		c.change(&o)
		var packed []byte
		must.NoError(t, base.MsgPackEncode(&packed, &testConfig{o}))
		err := New(t.Context(), nullLogger, testPlugin(testInstance{})).SetConfig(&base.Config{PluginConfig: packed})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestDeniedOptions_BlockUsersAndVariables(t *testing.T) {
	testsupport.NeedRoot(t) // to run tasks as other users
	a := start(t, map[string]any{"denied_host_uids": "0-10", "denied_host_gids": "4",
		"denied_envvars": []string{"SECRET*", "TOKEN"}})
	for user, want := range map[string]string{
		"": "user id 0 is not allowed", "root": "user id 0 is not allowed", "5": "user id 5 is not allowed",
		"nobody:4": "group id 4 is not allowed", "nobody": "",
	} {
		cfg := a.shell("echo $SECRET_KEY,$TOKEN,$TOKENS,$OTHER", `denied_envvars = ["OTH*"]`, func(c *drivers.TaskConfig) {
			c.User = user
			for _, name := range []string{"SECRET_KEY", "TOKEN", "TOKENS", "OTHER"} {
				c.Env[name] = "x"
			}
		})
		_, _, err := a.StartTask(cfg)
		if want == "" {
			must.NoError(t, err)
			a.wait(cfg.ID)
			test.Eq(t, ",,x,\n", a.output(cfg), test.Sprint("variables"))
			a.destroy(cfg.ID)
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("user %q: got %v, want %q", user, err, want)
		}
	}
}

func TestUser_DeterminesGroupsAndEnvironment(t *testing.T) {
	testsupport.NeedRoot(t) // to run tasks as other users
	a := start(t, nil)
	const script = "echo $(id -u):$(id -g):$(id -G | tr ' ' ,) $HOME $USER $LOGNAME"
	for user, c := range map[string]struct{ options, want string }{
		"nobody":        {"", "65534:65534:65534 /nonexistent nobody nobody"},
		"nobody:daemon": {"", "65534:1:1,65534 /nonexistent nobody nobody"},
		"65534:7":       {"", "65534:7:7,65534 /nonexistent nobody nobody"},
		"daemon":        {`groups = ["sys", "9"]`, "1:1:1,3,9 /usr/sbin daemon daemon"},
		"12345":         {"", "12345:12345:12345 /"},
	} {
		out, r := a.result(a.shell(script, c.options, func(cfg *drivers.TaskConfig) {
			cfg.User = user
			for _, name := range []string{"HOME", "USER", "LOGNAME"} { // Nomad passes the agent's values
				if v, set := os.LookupEnv(name); set {
					cfg.Env[name] = v
				}
			}
		}))
		if strings.TrimSpace(out) != c.want || r.ExitCode != 0 {
			t.Errorf("user %q: got %q, %+v, want %q", user, strings.TrimSpace(out), r, c.want)
		}
	}
	out, _ := a.result(a.shell("echo $HOME", "", func(cfg *drivers.TaskConfig) {
		cfg.User, cfg.Env["HOME"] = "nobody", "/what/the/job/says"
	}))
	test.Eq(t, "/what/the/job/says\n", out, test.Sprint("HOME of the job"))
	out, _ = a.result(a.shell("echo $HOME $USER $LOGNAME", "", func(cfg *drivers.TaskConfig) {
		for _, name := range []string{"HOME", "USER", "LOGNAME"} { // as if the agent's service manager had set none of them
			delete(cfg.Env, name)
		}
	}))
	test.Eq(t, "/root root root\n", out, test.Sprint("without a user"))
}

func TestOptions_ReachTheProcess(t *testing.T) {
	a := start(t, nil)
	out, r := a.result(a.shell("pwd; umask; ulimit -Sn; ulimit -Hn; nice; cat /proc/self/oom_score_adj", `
		work_dir = "local"
		umask = "0027"
		nice = 5
		oom_score_adj = 300
		ulimit { nofile = "100:200" }`))
	lines := strings.Fields(out)
	must.Eq(t, 0, r.ExitCode, must.Sprintf("got %q, %+v", lines, r))
	must.SliceLen(t, 6, lines, must.Sprintf("got %q, %+v", lines, r))
	must.StrHasSuffix(t, "/web/local", lines[0], must.Sprintf("got %q, %+v", lines, r))
	test.Eq(t, "0027 100 200 5 300", strings.Join(lines[1:], " "), test.Sprintf("got %q, %+v", lines, r))
}

func TestOutput_GoesThroughLogmon(t *testing.T) {
	a := start(t, map[string]any{"log_collection": "nomad"})
	cfg := a.shell("seq 1 5000; echo last >&2; exit 3", "", func(c *drivers.TaskConfig) { c.StdoutPath = "logmon" })
	a.run(cfg)
	r := a.wait(cfg.ID)
	test.Eq(t, 3, r.ExitCode, test.Sprintf("got %+v", r))
	testsupport.Eventually(t, "all lines are in the file", func() bool {
		return strings.HasSuffix(a.output(cfg), "\n5000\n")
	})
	n := strings.Count(a.output(cfg), "\n")
	test.Eq(t, 5000, n, test.Sprintf("%d lines", n))
	testsupport.Eventually(t, "stderr is in its file", func() bool {
		b, _ := os.ReadFile(filepath.Join(cfg.AllocDir, "alloc/logs/web.stderr.0"))
		return string(b) == "last\n"
	})
	a.destroy(cfg.ID)
	_, _, err := a.StartTask(a.shell("exit 0", "logs { max_files = 3 }"))
	test.ErrorContains(t, err, "logs", test.Sprint("logs in config"))
}

func TestOutput_IsDiscardedIfDisabled(t *testing.T) {
	for _, collection := range []string{"driver", "nomad"} {
		a := start(t, map[string]any{"log_collection": collection})
		cfg := a.shell("readlink /proc/self/fd/1 > $NOMAD_TASK_DIR/x; exit 4", "", func(c *drivers.TaskConfig) {
			c.StdoutPath, c.StderrPath = os.DevNull, os.DevNull
			c.Env["NOMAD_TASK_DIR"] = t.TempDir()
		})
		cfg2 := *cfg
		a.run(&cfg2)
		r := a.wait(cfg.ID)
		test.Eq(t, 4, r.ExitCode, test.Sprintf("%s: got %+v", collection, r))
		logs, _ := filepath.Glob(filepath.Join(cfg.AllocDir, "alloc/logs/*"))
		test.SliceEmpty(t, logs, test.Sprint(collection))
		a.destroy(cfg.ID)
	}
}

func TestNonRootAgent_SeccompDefaultDeniesUserNamespaces(t *testing.T) {
	if !withoutRoot(t) {
		return
	}
	a := start(t, map[string]any{"seccomp": seccompDefault})
	out, _ := a.result(a.shell("unshare -U true 2>/dev/null && echo entered || echo denied", ""))
	test.Eq(t, "denied\n", out)
}

func TestNonRootAgent_RunsTasksAndKillsWholeProcessTrees(t *testing.T) {
	if !withoutRoot(t) {
		return
	}
	a := start(t, nil)
	_, _, err := a.StartTask(a.shell("exit 0", "pids_limit = 5"))
	test.ErrorContains(t, err, "pids_limit", test.Sprint("pids_limit"))
	_, _, err = a.StartTask(a.shell("exit 0", "io_weight = 5"))
	test.ErrorContains(t, err, "io_weight", test.Sprint("io_weight"))
	_, _, err = a.StartTask(a.shell("exit 0", "", func(c *drivers.TaskConfig) { c.User = "root" }))
	test.Error(t, err, test.Sprint("a task runs as root"))
	out, r := a.result(a.shell("echo hello; exit 3", ""))
	must.Eq(t, "hello\n", out, must.Sprintf("got %q, %+v", out, r))
	test.Eq(t, 3, r.ExitCode, test.Sprintf("got %q, %+v", out, r))
	m := testsupport.Mark()
	cfg := a.shell("sleep "+m+" & (env -i sleep "+m+" <&- >&- 2>&- &); exec sleep "+m, "")
	a.run(cfg)
	testsupport.WaitSleepers(t, m, 3)
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	testsupport.WaitSleepers(t, m, 0)
	a.destroy(cfg.ID)
}
