// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// The test binary is also the plugin. The variable killAt names the step at which the plugin kills itself. The variable
// impatient shortens the time that a delete waits for processes that use the volume.
const (
	killAt    = "TEST_KILL_AT"
	impatient = "TEST_IMPATIENT"
)

func TestMain(m *testing.M) {
	at = func(step string) {
		if step == os.Getenv(killAt) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if os.Getenv(impatient) != "" {
		patience = 300 * time.Millisecond
	}
	if Role() {
		return
	}
	zfsfusetest.Main(m)
}

// node is a Nomad client with its directories for the volumes, and for the plugins and the operator's file.
type node struct {
	t                testing.TB
	pool             zfsfuse.Pool
	exe              string // binary that each call runs; if "", calls run in this process, which is faster
	volumes, plugins string
}

func testBinary(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	must.NoError(t, err)
	return exe
}

// newNode returns a node with the classes "dir" and "other", each with its own root on the pool.
func newNode(t testing.TB, pool zfsfuse.Pool) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "dhv")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, os.RemoveAll(dir)) })
	must.NoError(t, os.Chmod(dir, 0o711))
	n := &node{t: t, pool: pool, volumes: filepath.Join(dir, "volumes"), plugins: filepath.Join(dir, "plugins")}
	must.NoError(t, os.Mkdir(n.volumes, 0o755))
	must.NoError(t, os.Mkdir(n.plugins, 0o755))
	n.pool.Root += "/" + uuid.NewString()[:8]
	for _, name := range []string{"dir", "other"} {
		zfsfusetest.Sub(t, n.pool, name)
	}
	n.file("")
	t.Cleanup(func() { zfsfusetest.UnmountBelow(t, dir) })
	return n
}

func (n *node) engine(class string) *engine.Engine {
	n.t.Helper()
	e := engine.Open(n.pool.Program, n.pool.Root+"/"+class)
	return e
}

const everything = `allow = ["uid", "gid", "mode", "clone_from"]
  min_capacity = "16MiB"  default_capacity = "32MiB"  max_capacity = "128MiB"`

// file writes the operator's file, in which class "dir" gets additional options.
func (n *node) file(options string) {
	n.t.Helper()
	n.write(n.class("dir", everything+"\n  "+options) + n.class("other", `namespaces = ["ops"]`))
}

func (n *node) class(name, options string) string {
	return fmt.Sprintf("class %q {\n  root = %q\n  %s\n}\n", name, n.pool.Root+"/"+name, options)
}

func (n *node) write(text string) {
	n.t.Helper()
	text = fmt.Sprintf("zfs = %q\n%s", n.pool.Program, text)
	must.NoError(n.t, os.WriteFile(filepath.Join(n.plugins, "dataset.hcl"), []byte(text), 0o644))
}

// request has the parameters of a call by Nomad.
type request struct {
	id, name, namespace string
	min, max            int64
	parameters          map[string]string
	env                 []string      // further variables, as if Nomad had set them
	test                string        // variable for the plugin's process, such as killAt=STEP
	killed              time.Duration // time after which the plugin is killed; 0: never
}

func volume(parameters ...string) request {
	r := request{id: uuid.NewString(), name: "data", namespace: "default", parameters: map[string]string{"class": "dir"}}
	return r.with(parameters...)
}

// with returns the same volume with other parameters. An empty value removes a parameter.
func (r request) with(parameters ...string) request {
	all := map[string]string{}
	for name, value := range r.parameters {
		all[name] = value
	}
	for i := 0; i < len(parameters); i += 2 {
		if all[parameters[i]] = parameters[i+1]; parameters[i+1] == "" {
			delete(all, parameters[i])
		}
	}
	r.parameters = all
	return r
}

type result struct {
	Path  string
	Bytes int64
	Error string

	exit   int
	stderr string
}

// call calls the plugin, which sees only the variables that Nomad sets. The call runs in this process, unless the node
// has a binary, or the request kills the plugin or sets a variable for it.
func (n *node) call(operation string, r request) (got result) {
	n.t.Helper()
	env := n.environment(operation, r)
	var stdout, stderr bytes.Buffer
	switch {
	case n.exe != "":
		got.exit = n.process(n.exe, r, operation, env, &stdout, &stderr)
	case r.test != "" || r.killed > 0:
		got.exit = n.process(testBinary(n.t), r, operation, env, &stdout, &stderr)
	default:
		got.exit = Answer(func(name string) (string, bool) { return lookup(env, name) }, &stdout, &stderr)
	}
	got.stderr = stderr.String()
	if got.exit >= 0 {
		must.NoError(n.t, json.Unmarshal(stdout.Bytes(), &got), must.Sprintf("stdout: %q", &stdout))
	}
	return got
}

// lookup returns the last value of a variable, as os/exec does.
func lookup(env []string, name string) (value string, set bool) {
	for _, v := range slices.Backward(env) {
		if value, set := strings.CutPrefix(v, name+"="); set {
			return value, true
		}
	}
	return "", false
}

// environment returns the environment of a call.
func (n *node) environment(operation string, r request) []string {
	n.t.Helper()
	parameters, err := json.Marshal(r.parameters)
	must.NoError(n.t, err)
	env := append([]string{
		"DHV_OPERATION=" + operation, "DHV_VOLUMES_DIR=" + n.volumes, "DHV_PLUGIN_DIR=" + n.plugins, "DHV_NODE_POOL=default",
		"DHV_NAMESPACE=" + r.namespace, "DHV_VOLUME_NAME=" + r.name, "DHV_VOLUME_ID=" + r.id,
		"DHV_NODE_ID=1b1f5f0c-7a3e-4a51-b4d0-5b6c6ef4d0aa", "DHV_PARAMETERS=" + string(parameters),
	}, r.env...)
	if operation == "create" {
		return append(env, fmt.Sprint("DHV_CAPACITY_MIN_BYTES=", r.min), fmt.Sprint("DHV_CAPACITY_MAX_BYTES=", r.max))
	}
	return append(env, "DHV_CREATED_PATH="+filepath.Join(n.volumes, r.id))
}

// process makes a call with a binary.
func (n *node) process(exe string, r request, operation string, env []string, stdout, stderr io.Writer) (exit int) {
	n.t.Helper()
	cmd := exec.Command(exe, operation)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, stdout, stderr
	if r.test != "" {
		cmd.Env = append(cmd.Env, r.test)
	}
	must.NoError(n.t, cmd.Start())
	if r.killed > 0 {
		timer := time.AfterFunc(r.killed, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

func (n *node) create(r request) result {
	n.t.Helper()
	got := n.call("create", r)
	must.Eq(n.t, "", got.Error)
	must.Eq(n.t, 0, got.exit)
	return got
}

func (n *node) delete(r request) {
	n.t.Helper()
	got := n.call("delete", r)
	must.Eq(n.t, "", got.Error)
	must.Eq(n.t, 0, got.exit)
}

// refused makes a call that must fail with an error of one line, and change nothing.
func (n *node) refused(operation string, r request, want string) (sentence string) {
	n.t.Helper()
	n.unchanged(func() { sentence = n.fails(operation, r, want) })
	return sentence
}

// fails makes a call that must fail with an error of one line.
func (n *node) fails(operation string, r request, want string) (sentence string) {
	n.t.Helper()
	got := n.call(operation, r)
	must.Eq(n.t, 1, got.exit)
	must.StrContains(n.t, got.Error, want)
	must.StrNotContains(n.t, got.Error, "\n")
	return got.Error
}

// unchanged checks that calls change nothing.
func (n *node) unchanged(calls func()) {
	n.t.Helper()
	before := n.tree()
	calls()
	must.Eq(n.t, before, n.tree())
}

// tree returns everything that a call could change: files with their owners and sizes, and datasets.
func (n *node) tree() (lines []string) {
	n.t.Helper()
	out, err := exec.Command(n.pool.Program, "list", "-H", "-r", "-t", "all", "-o", "name,refquota,mounted",
		n.pool.Root).Output()
	must.NoError(n.t, err)
	lines = strings.Split(string(out), "\n")
	for _, dir := range []string{n.volumes, n.plugins} {
		must.NoError(n.t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil {
				line := fmt.Sprint(path, " ", info.Mode(), " ", info.Sys().(*syscall.Stat_t).Uid)
				if !d.IsDir() {
					line += fmt.Sprint(" ", info.Size())
				}
				lines = append(lines, line)
			}
			return err
		}))
	}
	return lines
}

// only checks the datasets and records: those of r must exist, and no others. If r has no id, none may exist.
func (n *node) only(r request) {
	n.t.Helper()
	var names []string
	all, err := n.engine("dir").List(n.t.Context())
	must.NoError(n.t, err)
	for _, d := range all {
		names = append(names, d.Name)
	}
	want := []string{engine.VolumeName(r.namespace, r.id)}
	records := []string{r.id + ".json"}
	if r.id == "" {
		want, records = nil, nil
	}
	must.Eq(n.t, want, names)
	must.Eq(n.t, records, n.records())
}

func (n *node) records() (names []string) {
	entries, _ := os.ReadDir(filepath.Join(n.volumes, ".outrider"))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (n *node) get(r request) engine.Dataset {
	n.t.Helper()
	d, err := n.engine("dir").Get(n.t.Context(), engine.VolumeName(r.namespace, r.id))
	must.NoError(n.t, err)
	return d
}

// inTrash returns the datasets in the trash.
func (n *node) inTrash() (found []engine.Dataset) {
	n.t.Helper()
	all, err := n.engine("dir").List(n.t.Context())
	must.NoError(n.t, err)
	for _, d := range all {
		if engine.InTrash(d.Name) {
			found = append(found, d)
		}
	}
	return found
}

func put(t testing.TB, path, name, text string) {
	t.Helper()
	must.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(text), 0o644))
}

func has(t testing.TB, path, name, want string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path, name))
	must.NoError(t, err)
	must.Eq(t, want, string(text))
}
