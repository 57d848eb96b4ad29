// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// records returns the content of all records of runs on the host.
func (b *box) records() string {
	b.t.Helper()
	files, err := filepath.Glob(filepath.Join(b.dir, "runs", "*.json"))
	must.NoError(b.t, err)
	all := ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.NoError(b.t, err)
		all += string(text)
	}
	return all
}

// runs returns the runs that list -json prints.
func (b *box) runs() (all []run) {
	b.t.Helper()
	r := b.does("list", "-json")
	must.Eq(b.t, 0, r.code)
	must.NoError(b.t, json.Unmarshal([]byte(r.out), &all))
	return all
}

// The name of the job has terminal escape sequences, which list and stop must not print.
func TestRun_IsListedAndEnded(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	mark := testsupport.Mark()
	const job, shown = "web\x1b[31m\u009b2J", "web [31m 2J/group[0]/main"
	node := b.starts(job, mark)
	pid := testsupport.Sleepers(mark)[0]

	before := b.records()
	all := b.runs()
	must.SliceLen(t, 1, all)
	want := run{
		Endpoint: "box", Names: driver.Names{Namespace: "default", Job: job, Group: "group", Index: "0", Task: "main"},
		Run: shim.Run{
			TaskID: node.ID, Key: all[0].Key, Epoch: 1, State: shim.Running, Followed: true,
			Owner:         shim.Owner{AllocID: node.AllocID, NodeID: node.NodeID},
			OrphanTimeout: 24 * time.Hour,
		},
	}
	test.Eq(t, want, all[0])
	list := b.does("list")
	test.StrContains(t, list.out, fmt.Sprintf("running  %.8s  %.8s  1      yes\n", node.AllocID, node.NodeID))
	refused := b.does("stop", shown)
	test.Eq(t, result{1, "", fmt.Sprintf("%s stop: an allocation follows the run: drain the allocation's node, "+
		"or use nomad alloc stop %s\n", filepath.Base(os.Args[0]), node.AllocID)}, refused)
	test.Eq(t, []int{pid}, testsupport.Sleepers(mark), test.Sprint("the process"))
	test.Eq(t, before, b.records(), test.Sprint("list changes nothing"))

	must.NoError(t, node.Close())
	testsupport.Eventually(t, "nobody follows the run", func() bool { return !b.runs()[0].Followed })
	list = b.does("list")
	test.Eq(t, 0, list.code)
	test.StrContains(t, list.out, shown+"  running")
	test.StrContains(t, list.out, "  1      no, for 0s: its orphan_timeout is 24h0m0s\n")
	for _, text := range []string{list.out, b.does("list", "-json").out} {
		test.False(t, strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }),
			test.Sprintf("%q", text))
	}
	test.Eq(t, before, b.records(), test.Sprint("list does not start the time without an owner"))

	other := b.starts("web", testsupport.Mark())
	test.StrContains(t, b.does("stop", "/group").err, `found no run "/group": use a name or id that "list" shows`)
	ended := b.does("stop", shown)
	test.Eq(t, result{0, `Ended ` + shown + ` on endpoint "box".` + "\n",
		"Waiting until nobody has followed the run for 15 s\n"}, ended)
	test.SliceEmpty(t, testsupport.Sleepers(mark), test.Sprint("processes of the run"))
	left := b.runs()
	must.SliceLen(t, 1, left)
	test.Eq(t, other.ID, left[0].TaskID, test.Sprint("the other run"))
	must.NoError(t, other.DestroyTask(other.ID, true))
	test.Eq(t, "[]\n", b.does("list", "-json").out)
}

func TestRun_IsKeptUntilItIsReleased(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	mark := testsupport.Mark()
	first := b.starts("web", mark)
	pid := testsupport.Sleepers(mark)
	for _, command := range []string{"adopt", "release"} {
		test.StrContains(t, b.does(command, first.ID).err, "an allocation follows the run: drain the allocation's node")
	}
	must.NoError(t, first.Close())
	testsupport.Eventually(t, "nobody follows the run", func() bool { return !b.runs()[0].Followed })

	must.Eq(t, result{0, "Kept web/group[0]/main on endpoint \"box\".\n", ""}, b.does("adopt", first.ID))
	kept := b.runs()[0]
	test.Eq(t, shim.Kept, kept.State)
	test.Eq(t, int64(2), kept.Epoch)
	test.Eq(t, shim.Owner{AllocID: shim.Operator}, kept.Owner)
	test.StrContains(t, b.does("list").out, "no: an operator keeps it\n")
	refused := b.does("stop", first.ID)
	test.StrContains(t, refused.err, "an operator keeps the run: release it first")
	test.Eq(t, pid, testsupport.Sleepers(mark))

	var released run
	must.NoError(t, json.Unmarshal([]byte(b.does("release", "-json", first.ID).out), &released))
	test.Eq(t, first.ID, released.TaskID)
	test.Eq(t, shim.Released, b.runs()[0].State)
	second := b.starts("web", mark)
	test.Eq(t, pid, testsupport.Sleepers(mark), test.Sprint("the next allocation takes the process over"))
	test.Eq(t, second.AllocID, b.runs()[0].Owner.AllocID)
	must.NoError(t, second.DestroyTask(second.ID, true))
	test.SliceEmpty(t, testsupport.Sleepers(mark))
}

func TestEndpoint_IsReportedInOneLineIfUnreachable(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	node := b.starts("web", testsupport.Mark())
	const nothing = 1 // a port on which nothing listens
	b.write("http://127.0.0.1:1", b.endpoint("away", nothing), b.endpoint("box", b.server.Port))

	for _, args := range [][]string{{"list"}, {"list", "-json"}, {"check"}, {"check", "-json"}} {
		r := b.does(args[0], args[1:]...)
		test.Eq(t, 1, r.code, test.Sprint(args))
		test.StrContains(t, r.err, `endpoint "away" can't be used: `, test.Sprint(args))
		test.Eq(t, 1, strings.Count(r.err, "\n"), test.Sprint(args))
		test.StrContains(t, r.out, "box", test.Sprint(args))
	}
	test.StrContains(t, b.does("stop", "none").err, `endpoint "away" can't be used: `)
	test.StrContains(t, b.does("stop", node.ID).err, "drain the allocation's node, or use nomad alloc stop "+node.AllocID)

	b.write("http://127.0.0.1:1", b.endpoint("again", b.server.Port), b.endpoint("box", b.server.Port))
	test.StrContains(t, b.does("stop", node.ID).err,
		fmt.Sprintf("use the id of one: %s on \"again\", %[1]s on \"box\"", node.ID))
	must.NoError(t, node.DestroyTask(node.ID, true))
}

func TestCheck_ReportsTheHost(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	r := b.does("check")
	test.Eq(t, 0, r.code, test.Sprint("the driver is healthy without an API, too"))
	test.StrContains(t, r.out, `endpoint "box" can be used: arch `)
	test.StrContains(t, r.out, fmt.Sprintf("root %t, dir %s, runs: 0\n", os.Geteuid() == 0, b.dir))
	test.StrContains(t, r.out, "note: the agent's API can't be used, so a task keeps running when its job is stopped: failed to query the API at http://127.0.0.1:1: ")

	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "job not found", http.StatusNotFound)
	}))
	t.Cleanup(agent.Close)
	b.write(agent.URL, b.endpoint("box", b.server.Port))
	test.StrContains(t, b.does("check").out, "the agent's API answers\n")
	var report struct {
		Endpoints []endpoint
		Problem   string `json:"api_problem"`
	}
	must.NoError(t, json.Unmarshal([]byte(b.does("check", "-json").out), &report))
	test.Eq(t, "", report.Problem)
	must.SliceLen(t, 1, report.Endpoints)
	test.Eq(t, "box", report.Endpoints[0].Name)
	test.Eq(t, b.dir, report.Endpoints[0].Dir)
	test.Eq(t, os.Geteuid() == 0, report.Endpoints[0].Root)
}

func TestCheck_ReportsMissingFeatures(t *testing.T) {
	t.Parallel()
	r := newBox(t, sshdtest.Unprivileged()).does("check")
	test.StrContains(t, r.out, "root false")
	test.StrContains(t, r.out, "the agent is not root, so tasks run as the agent's user\n")
}

func TestConfig_ErrorsAreOneSentence(t *testing.T) {
	endpoint := `endpoint "box" { ssh { host = "h" user = "u" key_file = "/k" host_keys = ["ssh-ed25519 AAAAB"] } }`
	block := func(config string) string { return `plugin "nomad-driver-remote" { config { ` + config + ` } }` }
	for name, row := range map[string]struct {
		files map[string]string
		args  []string
		want  string
	}{
		"none":     {want: "no such file or directory"},
		"no block": {files: map[string]string{"a.hcl": `plugin "raw_exec" {}`}, want: `has no plugin block "nomad-driver-remote", only "raw_exec"`},
		"two files": {
			files: map[string]string{"a.hcl": block(endpoint), "b.hcl": block(endpoint)},
			want:  "has several blocks, and Nomad uses only the last one: keep one of the blocks in DIR/a.hcl and DIR/b.hcl",
		},
		"two in a file": {
			files: map[string]string{"a.hcl": block(endpoint) + "\n" + block(endpoint)}, want: "has several blocks",
		},
		"no HCL":         {files: map[string]string{"a.hcl": "plugin {"}, want: "DIR/a.hcl: "},
		"no such option": {files: map[string]string{"a.hcl": block("x = 1")}, want: `"x"`},
		"a wrong value":  {files: map[string]string{"a.hcl": block(`endpoint "box" {}`)}, want: `endpoint "box" has no ssh block`},
		"no endpoint":    {files: map[string]string{"a.hcl": block("")}, want: "no endpoint is configured"},
		"extra argument": {args: []string{"x"}, want: "usage: list [-config PATH] [-json]"},
		"no such flag":   {args: []string{"-x"}, want: "flag provided but not defined: -x; usage: list"},
		"another block":  {files: map[string]string{"a.json": `{"client": {"enabled": true}}`}, want: "has no plugin block"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "nomad.d")
			if row.files != nil {
				must.NoError(t, os.Mkdir(dir, 0o755))
			}
			for file, text := range row.files {
				must.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			r := does(t, append([]string{"list", "-config", dir}, row.args...)...)
			test.Eq(t, 1, r.code)
			test.Eq(t, "", r.out)
			test.StrContains(t, r.err, strings.ReplaceAll(row.want, "DIR", dir))
			test.Eq(t, 1, strings.Count(r.err, "\n"), test.Sprint("lines"))
		})
	}
}

func TestRun_ShowsLabelAndWhetherItIsFollowed(t *testing.T) {
	names := driver.Names{Namespace: "default", Job: "web", Group: "api", Index: "1", Task: "main"}
	other := names
	other.Namespace = "prod"
	for name, row := range map[string]struct {
		run             run
		label, followed string
	}{
		"followed": {
			run:   run{Names: names, Run: shim.Run{State: shim.Running, Followed: true, OrphanTimeout: time.Hour}},
			label: "web/api[1]/main", followed: "yes",
		},
		"released": {
			run: run{Names: other, Run: shim.Run{
				State: shim.Released, Alone: 90*time.Second + time.Millisecond, OrphanTimeout: time.Hour,
			}},
			label: "prod/web/api[1]/main", followed: "no, for 1m30s: its orphan_timeout is 1h0m0s",
		},
		"a key of another version": {
			run:   run{Run: shim.Run{Key: "a\tb", State: shim.Running, Alone: time.Hour}},
			label: "a b", followed: "no, for 1h0m0s: it has no orphan_timeout",
		},
		"kept": {
			run: run{Names: names, Run: shim.Run{State: shim.Kept}}, label: "web/api[1]/main",
			followed: "no: an operator keeps it",
		},
		"ending": {
			run: run{Names: names, Run: shim.Run{State: shim.Ending}}, label: "web/api[1]/main",
			followed: "no: the host ends it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.Eq(t, row.label, row.run.label())
			test.Eq(t, row.followed, row.run.followed())
		})
	}
}
