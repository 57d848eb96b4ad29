// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

// remoteNode is an agent with an endpoint "box", which is a remoteHost.
type remoteNode struct {
	*node
	server *sshdtest.Server
	link   *sshdtest.Link // the plugin's connection to the server
}

func newRemoteNode(t *testing.T) *remoteNode {
	t.Helper()
	host := newRemoteHost(t)
	link := host.server.Link()
	n := newNode(t, host.options(link.Port, ""))
	return &remoteNode{node: n, server: host.server, link: link}
}

// remoteHost simulates a host on this machine, with its own SSH server.
type remoteHost struct {
	server *sshdtest.Server
	dir    string
}

func newRemoteHost(t *testing.T, options ...sshdtest.Option) *remoteHost {
	t.Helper()
	server := sshdtest.Start(t, options...)
	dir, err := os.MkdirTemp(scratch, "h")
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(dir)) })
	return &remoteHost{server: server, dir: dir}
}

// options returns the options of a node with the host as endpoint "box", whose SSH server has this port. The plugin
// uses the Nomad API at the address api; empty: the API of its own agent.
func (h *remoteHost) options(port int, api string) nodeOptions {
	return nodeOptions{remote: true, state: h.dir, plugin: fmt.Sprintf(`
api {
  address = %q
}
%s`, cmp.Or(api, "http://127.0.0.1:${http_port}"), h.server.Endpoint("box", h.dir, port))}
}

// isShim reports whether a process is the program on the host that serves the node.
func (n *node) isShim(p proc) bool {
	return len(p.args) == 3 && p.args[1] == "outrider-shim" && strings.Contains(p.args[2], `"`+n.state+`"`)
}

// onBox makes a job's task run on the endpoint.
func onBox(_ *api.Job, task *api.Task) {
	task.Driver = "remote"
	task.SetConfig("endpoint", "box")
}

// hostDir returns the allocation's directory on the host.
func (a *alloc) hostDir() string { return filepath.Join(a.n.state, "allocs", a.id) }

func TestRemote_TaskHasTheFeaturesOfALocalTask(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	n := newRemoteNode(t)

	t.Run("files that Nomad puts into its directory", func(t *testing.T) {
		artifacts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "artifact")
		}))
		t.Cleanup(artifacts.Close)
		value := func(text string) {
			v := &api.Variable{Path: "nomad/jobs", Items: map[string]string{"greeting": text}}
			_, _, err := n.Client().Variables().Update(v, nil)
			must.NoError(t, err)
		}
		value("hello")
		const secret = "known-to-the-task-alone"
		a := n.start(t, sh(`show() { cat conf/config; cat $NOMAD_SECRETS_DIR/key; }
			trap show HUP; show; stat -c '%U %a' secrets/key local/lib/index secrets
			test -s secrets/nomad_token && cat local/artifact; while :; do sleep 0.1; done`), onBox,
			func(_ *api.Job, task *api.Task) {
				task.User = "nobody"
				task.Env = map[string]string{"PASSWORD": secret}
				task.Identity = &api.WorkloadIdentity{File: true}
				task.Artifacts = []*api.TaskArtifact{{
					GetterSource: new(artifacts.URL), GetterMode: new("file"), RelativeDest: new("local/artifact"),
				}}
				task.Templates = []*api.Template{
					{EmbeddedTmpl: new(secret + "\n"), DestPath: new("secrets/key"), Perms: new("0400")},
					{EmbeddedTmpl: new("index\n"), DestPath: new("local/lib/index")},
					{EmbeddedTmpl: new("{{ with nomadVar \"nomad/jobs\" }}{{ .greeting }}{{ end }}\n"),
						DestPath: new("conf/config"), ChangeMode: new("signal"), ChangeSignal: new("SIGHUP")},
				}
			})
		a.says(t, "stdout", "hello\n"+secret+"\nnobody 400\nnobody 644\nnobody 700\nartifact\n")
		value("goodbye")
		a.says(t, "stdout", "goodbye\n"+secret+"\n")
		must.NoError(t, os.WriteFile(filepath.Join(a.hostDir(), "main/local/artifact"), []byte("changed\n"), 0o644))
		must.NoError(t, n.Client().Allocations().Restart(&api.Allocation{ID: a.id}, "main", nil))
		a.says(t, "stdout", "nobody 700\nchanged\n") // the artifact is not copied again
		for _, p := range n.processes() {
			test.StrNotContains(t, strings.Join(p.args, " "), secret)
		}
		a.stop(t)
		test.StrNotContains(t, a.story(), secret)
		test.StrNotContains(t, n.log(), secret)
	})
	t.Run("a service at the host's address", func(t *testing.T) {
		a := n.start(t, sh("while :; do sleep 0.1; done"), onBox, func(j *api.Job, task *api.Task) {
			j.TaskGroups[0].Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http", To: -1}}}}
			task.Services = []*api.Service{
				{Name: "by-number", Provider: "nomad", PortLabel: "8080", AddressMode: "driver"},
				{Name: "by-mode", Provider: "nomad", PortLabel: "http", AddressMode: "driver"},
				{Name: "by-name", Provider: "nomad", PortLabel: "http", Address: "${attr.driver.remote.endpoint.box.address}"},
			}
		})
		for _, name := range []string{"by-number", "by-mode", "by-name"} {
			testsupport.Within(t, time.Minute, func() error {
				all, _, err := n.Client().Services().Get(name, nil)
				if err == nil && (len(all) != 1 || all[0].Address != n.server.Host || all[0].Port == 0) {
					err = fmt.Errorf("the services are %+v", all)
				}
				return err
			})
		}
		a.stop(t)
	})
	t.Run("a session with a terminal", func(t *testing.T) { // TestDriver_Conforms of the plugin tests other sessions
		a := n.start(t, sh("while :; do sleep 0.1; done"), onBox)
		sizes := make(chan api.TerminalSize, 1)
		sizes <- api.TerminalSize{Height: 33, Width: 77}
		code, out, _ := a.session(t, true, nil, sizes, "/bin/sh", "-c", `for i in $(seq 1 1000); do s=$(stty size)
			[ "$s" = "33 77" ] && break; sleep 0.05; done; echo size $s in $(pwd); exit 42`)
		test.Eq(t, 42, code)
		test.StrContains(t, out, "size 33 77 in "+a.hostDir()+"/main\r\n")
		a.stop(t)
	})
	t.Run("an unknown endpoint", func(t *testing.T) {
		a := n.submit(t, job(t, sh("true"), onBox, func(_ *api.Job, task *api.Task) { task.SetConfig("endpoint", "gpu1") }))
		a.ended(t)
		test.NoError(t, a.tells(`unknown endpoint "gpu1": this node has ["box"]`))
	})
}

// The plugin logs in through a jump host as an unprivileged user, who owns the endpoint's directory.
func TestRemote_RunsOnAHostWithoutRoot(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	host, jump := newRemoteHost(t, sshdtest.Unprivileged()), sshdtest.Start(t)
	must.NoError(t, os.Chown(host.dir, host.server.UID, -1))
	public, err := exec.Command("ssh-keygen", "-y", "-f", host.server.KeyFile).Output()
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(jump.Dir, "authorized_keys"), public, 0o644))
	options := host.options(host.server.Port, "")
	way := fmt.Sprintf("  ssh {\n    jump {\n      host = %q\n      port = %d\n      user = %q\n      host_keys = [%q]\n"+
		"    }\n", jump.Host, jump.Port, jump.User, jump.HostKey)
	options.plugin = strings.Replace(options.plugin, "  ssh {\n", way, 1)
	n := newNode(t, options)
	a := n.start(t, sh("trap 'id -un; exit 7' USR1; cat local/file; while :; do sleep 0.1; done"), onBox,
		func(_ *api.Job, task *api.Task) {
			task.Templates = []*api.Template{{EmbeddedTmpl: new("hello\n"), DestPath: new("local/file")}}
		})
	a.says(t, "stdout", "hello\n")
	must.NoError(t, n.Client().Allocations().Signal(a.stub(t), nil, "main", "SIGUSR1"))
	test.Eq(t, "exit 7", a.ended(t))
	a.says(t, "stdout", host.server.User+"\n")
}

func TestRemote_ExitIsExactThroughFaults(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	n := newRemoteNode(t)
	nothing := func() {}
	for _, f := range []fault{
		{name: "link is down", strike: func(*testing.T, *round) func() {
			n.link.Cut()
			return n.link.Restore
		}},
		{name: "shim is killed", strike: func(t *testing.T, _ *round) func() {
			n.one(t, "shim", n.isShim).end(t)
			return nothing
		}},
		{name: "plugin is killed", strike: func(t *testing.T, _ *round) func() {
			old := n.plugin(t)
			old.end(t)
			return func() { n.another(t, n.isPlugin, old) }
		}},
		{name: "server is away", long: true, strike: func(*testing.T, *round) func() {
			n.server.Stop()
			return n.server.Restart
		}},
		{name: "shim hangs", long: true, strike: func(t *testing.T, _ *round) func() {
			resume := n.one(t, "shim", n.isShim).pause(t)
			return func() {
				defer resume()
				testsupport.Within(t, 2*time.Minute, func() error { // the node gives up on the shim, and starts another
					if len(n.find(n.isShim)) < 2 {
						return fmt.Errorf("no second shim runs")
					}
					return nil
				})
			}
		}},
		{name: "supervisor is killed", long: true, loses: everybody, cut: true, strike: func(t *testing.T, _ *round) func() {
			n.supervisor(t).end(t)
			return nothing
		}},
		{name: "shim and supervisor are killed", long: true, loses: everybody, cut: true,
			strike: func(t *testing.T, _ *round) func() {
				n.link.Cut()
				n.one(t, "shim", n.isShim).end(t)
				n.supervisor(t).end(t)
				return n.link.Restore
			}},
		{name: "agent is killed", long: true, strike: func(t *testing.T, _ *round) func() {
			kill(t, n.node)
			return func() { n.restart(t) }
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			if f.long {
				testsupport.Long(t, "faults that are noticed late")
			}
			f.run(t, n.node)
		})
	}
}

// residentMemory returns the resident memory of a process in kB.
func residentMemory(pid int) (kilobytes int, err error) {
	st, err := task.ReadStat(pid)
	return int(st.RSS) * os.Getpagesize() >> 10, err
}

// A thousand tasks leak no descriptors or memory in the plugin and its processes on the host, and leave no files there.
func TestRemote_AThousandStartsLeaveNothingBehind(t *testing.T) {
	needRootAgent(t)
	testsupport.Long(t, "a thousand tasks")
	t.Parallel()
	const (
		round  = 250
		rounds = 5 // the first is a warm-up

		mostMore = 16 << 10 // memory in kB: the core keeps the exits of the last 1,000 tasks, 6 MB here
	)
	n := newRemoteNode(t)
	keep := n.start(t, conf{"command": "/bin/sleep", "args": []string{"3600"}}, onBox)
	processes := map[string]proc{
		"plugin": n.plugin(t), "shim": n.one(t, "shim", n.isShim), "supervisor": n.supervisor(t),
	}
	files, memory := map[string]int{}, map[string]int{}
	for i := range rounds {
		j := job(t, sh("echo said; head -c 1000 /dev/zero > local/file"), onBox, small(round))
		n.submit(t, j)
		testsupport.Within(t, 10*time.Minute, func() error {
			summary, _, err := n.Client().Jobs().Summary(*j.ID, nil)
			if err == nil && summary.Summary["g"].Complete != round {
				err = fmt.Errorf("round %d: %+v", i, summary.Summary["g"])
			}
			return err
		})
		_, _, err := n.Client().Jobs().Deregister(*j.ID, true, nil)
		must.NoError(t, err)
		testsupport.Within(t, 3*time.Minute, func() error {
			left, err := os.ReadDir(filepath.Dir(keep.hostDir()))
			if err != nil || len(left) == 1 {
				return err
			}
			past := time.Now().Add(-5 * time.Hour)
			for _, e := range left { // make them look old, because recently used ones are kept
				os.Chtimes(filepath.Join(filepath.Dir(keep.hostDir()), e.Name()), past, past)
			}
			return fmt.Errorf("round %d: the host has directories of %d allocations", i, len(left))
		})
		for name, p := range processes {
			now, err := residentMemory(p.pid)
			must.NoError(t, err, must.Sprintf("the %s has ended", name))
			if i == 0 {
				files[name], memory[name] = descriptors(p.pid), now
			}
			t.Logf("after round %d the %s has %d kB and %d descriptors", i, name, now, descriptors(p.pid))
		}
	}
	for name, p := range processes {
		testsupport.Within(t, time.Minute, func() error {
			open := descriptors(p.pid)
			now, err := residentMemory(p.pid)
			if err == nil && (open > files[name] || now > memory[name]+mostMore) {
				err = fmt.Errorf("the %s has %d descriptors and %d kB, had %d and %d after the warm-up", name, open, now,
					files[name], memory[name])
			}
			return err
		})
	}
	keep.stop(t)
}
