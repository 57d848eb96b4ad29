// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/moby/moby/client"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/remotehost"
)

// TestLab_WithARemoteHost goes the way of the README, and runs the examples.
func TestLab_WithARemoteHost(t *testing.T) {
	if !agent.Privileged() {
		t.Skip("only root simulates a host")
	}
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil {
		t.Skip(err)
	}
	l, out := live(t)
	does := func(want string, f func() error) {
		t.Helper()
		out.Reset()
		start := time.Now()
		must.NoError(t, f(), must.Sprint(out))
		must.StrContains(t, words(out.String()), words(want), must.Sprintf("no %q in\n%s", want, out))
		t.Logf("%.1f s: %s", time.Since(start).Seconds(), want)
	}
	does("Ready in", func() error { return l.Up(t.Context(), With{Remote: "true"}) })
	a, err := l.open(t.Context())
	must.NoError(t, err)
	nodes, err := l.nodes(t.Context())
	must.NoError(t, err)
	must.SliceLen(t, 2, nodes)
	does(remoteHost+" none", func() error { return l.Status(t.Context()) })

	// the lab's own node can't be killed without its server
	_, err = a.Client().Nodes().ToggleEligibility(agent.NodeID(a), false, nil)
	must.NoError(t, err)
	does("Job counter runs", func() error {
		return l.Run(t.Context(), filepath.Join(l.root, remoteExamples, "counter.nomad.hcl"))
	})
	c := &counter{t: t, lab: l, client: a.Client()}
	owner := c.next("")
	does("counter.counter[0]/counter running", func() error { return l.Status(t.Context()) })
	test.StrContains(t, out.String(), owner.NodeName+", allocation "+owner.ID[:8])

	must.NoError(t, agent.Drain(t.Context(), a.Client(), owner.NodeID, time.Hour))
	second := c.next(owner.ID)
	does("All 1 running tasks lived on", func() error { return l.Reload(t.Context(), "remote") })
	must.NoError(t, agent.Undrain(t.Context(), a.Client(), owner.NodeID))
	nodes, err = l.nodes(t.Context()) // other processes
	must.NoError(t, err)
	for _, n := range nodes {
		if agent.NodeID(n) == second.NodeID {
			must.NoError(t, n.Kill(t.Context()))
		}
	}
	third := c.next(second.ID)
	does("counter.counter[0]/counter running", func() error { return l.Status(t.Context()) })
	test.StrContains(t, out.String(), third.NodeName+", allocation "+third.ID[:8])
	does("Starting the other nodes", func() error { return l.Up(t.Context(), With{}) })
	c.countsOn(owner, second, third)
	does("", func() error { return l.Stop(t.Context(), "counter") })
	does(remoteHost+" none", func() error { return l.Status(t.Context()) })

	container := filepath.Join(l.root, remoteExamples, "container.nomad.hcl")
	job, err := parseJob(a.Client(), container)
	must.NoError(t, err)
	r, _, err := a.Client().Jobs().Validate(job, nil)
	must.NoError(t, err)
	test.Eq(t, "", r.Error+r.Warnings, test.Sprint("Nomad's word on the example"))
	socket := l.engine(t.Context())
	parts := engineParts{cluster: l.cluster(), objects: map[string]bool{}}
	if socket != "" {
		parts.api = moby(t, socket)
		needsBusybox(t, parts.api)
		does("Job container runs", func() error { return l.Run(t.Context(), container) })
		testsupport.Eventually(t, "the page", func() bool { return strings.Contains(page(a.Client()), "Job container") })
		must.SliceNotEmpty(t, parts.left(t))
		does("", func() error { return l.Stop(t.Context(), "container") })
		must.SliceEmpty(t, parts.left(t))
	}

	text, err := os.ReadFile(filepath.Join(l.root, remoteExamples, "train.nomad.hcl"))
	must.NoError(t, err)
	data := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(l.root, remoteExamples, "data"))))
	defer data.Close()
	train := filepath.Join(t.TempDir(), "train.nomad.hcl")
	text = bytes.ReplaceAll(text, []byte("http://127.0.0.1:8000"), []byte(data.URL))
	must.NoError(t, os.WriteFile(train, text, 0o644))
	does("y = 1.94 + 3.03 x", func() error { return l.Run(t.Context(), train) })

	if socket != "" {
		does("Job container runs", func() error { return l.Run(t.Context(), container) })
		must.SliceNotEmpty(t, parts.left(t))
	}
	text, err = os.ReadFile(l.hostFile())
	must.NoError(t, err)
	var h remotehost.Host
	must.NoError(t, json.Unmarshal(text, &h))
	does("they are gone, with their files", func() error { return l.Down(t.Context()) })
	test.False(t, h.Process.Alive(), test.Sprint("the host is left"))
	for _, n := range append(nodes, a) {
		left, err := n.Leftovers(t.Context())
		must.NoError(t, err)
		test.SliceEmpty(t, left, test.Sprint("left"))
	}
	if socket != "" {
		test.SliceEmpty(t, parts.left(t), test.Sprint("left on the engine"))
	}
}

// words has one space where there may be more: the columns of a table are as wide as all that is on an engine.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// engineParts are what tasks of a cluster have on an engine.
type engineParts struct {
	api     *client.Client
	cluster string
	objects map[string]bool // by name, those of the cluster that were ever seen
}

// left lists the containers and volumes.
func (p *engineParts) left(t *testing.T) (list []string) {
	t.Helper()
	containers, err := p.api.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: p.ours()})
	must.NoError(t, err)
	volumes, err := p.api.VolumeList(t.Context(), client.VolumeListOptions{Filters: p.ours()})
	must.NoError(t, err)
	const object = "dev.outrider.object"
	for _, c := range containers.Items {
		var claim struct{ Key struct{ Cluster string } }
		if text := c.Labels["dev.outrider.claim"]; text != "" { // the task's own container has none
			must.NoError(t, json.Unmarshal([]byte(text), &claim))
			p.objects[c.Labels[object]] = p.objects[c.Labels[object]] || claim.Key.Cluster == p.cluster
		}
	}
	for _, c := range containers.Items {
		if p.objects[c.Labels[object]] {
			list = append(list, fmt.Sprintf("container %v", c.Names))
		}
	}
	for _, v := range volumes.Items {
		if p.objects[v.Labels[object]] {
			list = append(list, "volume "+v.Name)
		}
	}
	return list
}

func (*engineParts) ours() client.Filters {
	return client.Filters{}.Add("label", "dev.outrider.plugin=remote")
}

// page is what the container's service answers, by the address that Nomad announces.
func page(c *api.Client) string {
	all, _, err := c.Services().Get("remote-page", nil)
	if err != nil || len(all) != 1 {
		return ""
	}
	answer, err := http.Get(fmt.Sprintf("http://%s:%d", all[0].Address, all[0].Port))
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return string(text)
}

// moby is a client of an engine.
func moby(t *testing.T, socket string) *client.Client {
	t.Helper()
	c, err := client.New(client.WithHost("unix://" + socket))
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Close()) })
	return c
}

// needsBusybox gives the engine the example's image, unless it has one.
func needsBusybox(t *testing.T, c *client.Client) {
	t.Helper()
	const image, program = "busybox:1.36", "/bin/busybox"
	if _, err := c.ImageInspect(t.Context(), image); err == nil {
		return
	}
	binary, err := os.ReadFile(program)
	must.NoError(t, err, must.Sprint("busybox-static is needed"))
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must.NoError(t, w.WriteHeader(&tar.Header{Name: program[1:], Mode: 0o755, Size: int64(len(binary))}))
	_, err = w.Write(binary)
	must.NoError(t, errors.Join(err, w.Close()))
	imported, err := c.ImageImport(t.Context(), client.ImageImportSource{Source: &b, SourceName: "-"}, image,
		client.ImageImportOptions{})
	must.NoError(t, err)
	_, err = io.Copy(io.Discard, imported)
	must.NoError(t, errors.Join(err, imported.Close()))
	t.Cleanup(func() {
		_, err := c.ImageRemove(context.Background(), image, client.ImageRemoveOptions{Force: true})
		test.NoError(t, err)
	})
}

// counter is the example of that name.
type counter struct {
	t      *testing.T
	lab    *Lab
	client *api.Client
}

// next waits until another allocation runs, and has written something.
func (c *counter) next(former string) (found *api.AllocationListStub) {
	c.t.Helper()
	testsupport.Eventually(c.t, "the next allocation", func() bool {
		list, _, err := c.client.Jobs().Allocations("counter", false, nil)
		for _, a := range list {
			if a.ID != former && a.ClientStatus == "running" && a.DesiredStatus == "run" && len(c.lines(a)) > 1 {
				found = a
			}
		}
		return err == nil && found != nil
	})
	return found
}

// lines are those in the files of an allocation of another node than the first, none before there are some.
func (c *counter) lines(a *api.AllocationListStub) []string {
	text, _ := os.ReadFile(filepath.Join(c.lab.dir, a.NodeName, "data/alloc", a.ID, "alloc/logs/counter.stdout.0"))
	lines := strings.Split(string(text), "\n")
	return lines[:len(lines)-1]
}

// countsOn checks that one process has counted from the first to the last allocation.
func (c *counter) countsOn(allocs ...*api.AllocationListStub) {
	c.t.Helper()
	var all []string
	for _, a := range allocs {
		all = append(all, c.lines(a)...)
	}
	_, by, _ := strings.Cut(all[0], ", ")
	for i, line := range all {
		must.Eq(c.t, fmt.Sprintf("%d, %s", i+1, by), line)
	}
}
